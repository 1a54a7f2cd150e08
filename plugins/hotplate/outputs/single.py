"""One row that is not in memory, on its way through the cache: what `run` does, without arrays.

A batch of one spends a millisecond on arrays of one. Here rules are judged on Python's own numbers;
what is counted, kept and answered is the same, and tests hold the two ways against each other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hotplate.durations import NO_LIMIT_NS
from hotplate.keys import Key
from hotplate.outputs.conditions import Asked, Judge, Row
from hotplate.outputs.families import Family
from hotplate.outputs.inputs import InputSchema
from hotplate.outputs.policy import OutputPolicy
from hotplate.outputs.rules import Rule
from hotplate.outputs.scored import ONE_COMPUTED, RULE, WORDS, Inputs, Scored, Values, short_output

if TYPE_CHECKING:
    from hotplate.outputs.cache import OutputCache

__all__ = ["Held", "RowRules", "Single"]

Held = tuple[int, bool]
"""A rule that forbids, by its place among all, and whether it is unsure."""
_FLOATS: Final = "dfe"  # the rest may not fit into a float


@dataclass(frozen=True)
class RowRules:
    """The rules of a model for one row with certain cells beside it.

    Attributes:
        forbid: whether any rule forbids a row whose answer is known.
        judges: each rule and what judges it.
        negative: what tells negative outputs; None where nothing does.
        is_whole: whether all of them can be judged on the row; else a batch says what is missing.
    """

    forbid: Callable[[Row, Row, int], bool]
    judges: tuple[tuple[Rule, Judge], ...]
    negative: Judge | None
    is_whole: bool

    @classmethod
    def of(cls, policy: OutputPolicy, inputs: InputSchema, beside: tuple[str, ...]) -> RowRules:
        """The rules of a policy.

        Args:
            policy: where they stand.
            inputs: what the model reads, the first cells of a row.
            beside: names of the cells behind them.
        """
        rules, count = policy.applied, len(inputs.fields)
        at = {name: count + place for place, name in enumerate(beside)}
        judges = [(rule, rule.for_row(inputs.places, at)) for rule in rules.rules]
        negative, is_whole = None, all(judge is not None for _, judge in judges)
        is_whole = is_whole and not any(name in inputs.places for name in beside)
        if policy.negative_rule is not None:
            negative = policy.negative_rule.for_row(inputs.places, at)
            is_whole = is_whole and negative is not None
        return cls(
            rules.for_row(inputs.places, at),
            tuple((rule, judge) for rule, judge in judges if judge is not None),
            negative,
            is_whole,
        )

    def held(self, cells: Row, scores: Row | None, wall_ns: int) -> list[Held]:
        """The rules that forbid: those that need no score, or those that do.

        Raises:
            Exception: one cannot be judged.
        """
        found, is_scored = [], scores is not None
        for number, (rule, judge) in enumerate(self.judges):
            if rule.needs_score is is_scored:
                said = judge(cells, scores or (), wall_ns)
                if said is not False:  # unknown counts as yes
                    found.append((number, said is None))
        return found


class Single:
    """One row that the model is asked for.

    Args:
        cache: the cache.
        row: (1, inputs).
        beside: as `OutputCache.score`.
        cells: of the row, and of what is beside it, as Python's own numbers and texts.
        key: of the row.
        code: why it is computed, if no rule says so.
        rules: of the model.
        held: those that need no score and forbid.
        family: of the row, not bypassed; None where there are none.
        now_ns, wall_ns: on the cache's clock.
        began_s: on the performance counter.

    Attributes:
        wanted: the row.
        model_s: how long the model took for it.
    """

    def __init__(
        self,
        cache: OutputCache,
        row: Values,
        beside: Mapping[str, Any] | None,
        *,
        cells: list[Any],
        key: bytes,
        code: int,
        rules: RowRules,
        held: list[Held],
        family: Family | None,
        now_ns: int,
        wall_ns: int,
        began_s: float,
    ) -> None:
        self._cache, self.wanted, self._beside = cache, row, beside
        self._cells, self._key, self._family = cells, key, family
        self._rules, self._now_ns, self._wall_ns = rules, now_ns, wall_ns
        self._began_s, self.model_s = began_s, 0.0
        self._code = RULE + 16 * (held[0][0] + 1) if held else code
        for number, is_unsure in held:
            cache._count_rule(number, 1, int(is_unsure))
        self._inputs: Inputs | None = None
        self._versions: tuple[int, ...] | None = None
        self._lacks_features = False
        self._fresh: Values | None = None

    def made_of(self, features: Any) -> None:
        """Say what the row was made of, before the model is asked.

        Raises:
            OutputError: it is no answer of the store.
        """
        cache = self._cache
        tier = cache._tier
        if features is None:
            self._lacks_features = cache.needs_features
            self._versions = tier.versions(())
            return
        inputs = self._inputs = cache._made_of(features, 1)
        if self._code < RULE:
            versions = tier.versions(inputs.keys[0])
            if inputs.are_there(0):  # after the versions were taken, see the tier
                self._versions = versions

    def take(self, given: Any) -> bool:
        """Check and keep what the model answered; True, for it is all that is answered.

        Raises:
            OutputError: it is not what it must be; nothing is kept.
        """
        cache = self._cache
        # the caller's own: a model may fill one array again and again
        fresh = self._fresh = cache._checked(given, 1).copy()
        is_plain = fresh.dtype.char in _FLOATS
        scores: list[float] = (fresh.ravel() if is_plain else cache._as_scores(fresh)[0]).tolist()
        if self._family is not None and self._code < RULE:
            self._note_output(self._family, scores)
        if not all(map(math.isfinite, scores)):
            cache._refuse_numbers(1)
        elif not cache._off and not self._lacks_features:
            self._keep(fresh, scores)
        return True

    def _note_output(self, family: Family, scores: list[float]) -> None:
        cache = self._cache
        assert cache._families is not None
        rounded = np.array(scores)
        if (places := cache.policy.shadow_decimals) is not None:
            rounded = np.round(rounded, places) + 0.0
        near = cache.inputs.coarser.key_of_row(self.wanted, self._cells[: self.wanted.shape[1]])
        assert near is not None  # as the row has a key
        cache._families.note_output(family, self._key, near, short_output(rounded.tobytes()))

    def _keep(self, fresh: Values, scores: list[float]) -> None:
        cache, inputs = self._cache, self._inputs
        is_forbidden = cache._rules.has_score and self._is_forbidden(scores)
        if is_forbidden or self._code >= RULE or self._versions is None:
            return
        deadline_ns = min(self._now_ns + self._life_ns(scores), NO_LIMIT_NS)
        on: tuple[Key, ...] = ()
        is_heard = False
        if inputs is not None:
            deadline_ns = min(deadline_ns, inputs.deadlines_ns[0])
            on, is_heard = inputs.keys[0], inputs.lease is not None
            if deadline_ns <= self._now_ns:
                return
        item = (self._key, fresh.tobytes(), deadline_ns, on, is_heard, self._versions)
        cache._counts.count_kept(1, cache._tier.put([item]))

    def _is_forbidden(self, scores: list[float]) -> bool:
        """Whether a rule that needs the score forbids."""
        cache = self._cache
        try:
            held = self._rules.held(self._cells, scores, self._wall_ns)
        except Exception:  # noqa: BLE001 - the batch says of which rule, and what it is
            return cache._is_forbidden(self._asked(scores))
        for number, is_unsure in held:
            cache._count_rule(number, 1, int(is_unsure))
        return bool(held)

    def _life_ns(self, scores: list[float]) -> int:
        policy, negative = self._cache.policy, self._rules.negative
        if negative is None:
            return policy.ttl_ns
        try:
            is_negative = negative(self._cells, scores, self._wall_ns) is not False
        except Exception:  # noqa: BLE001 - as a rule: what cannot be judged holds
            is_negative = True
        return policy.negative_ttl_ns if is_negative else policy.ttl_ns

    def _asked(self, scores: list[float]) -> Asked:
        batch = self._cache._batch_of(self.wanted, self._beside)
        return Asked(batch, np.array([scores]), self._wall_ns)

    def answer(self) -> Scored:
        """The row's answer; counts it."""
        cache, family = self._cache, self._family
        assert self._fresh is not None
        cache._counts.count_computed(WORDS[self._code & 15], self._lacks_features)
        if family is not None:
            assert cache._families is not None
            own_s = time.perf_counter() - self._began_s - self.model_s
            cache._families.note_time(own_s, 1, self.model_s, 1)
            stopped = cache._families.note_computed(family, self._code < RULE, self._now_ns)
            cache._log_stopped(stopped)
        codes = np.array([self._code], np.int16)
        return Scored(self._fresh, ONE_COMPUTED, codes, cache._rule_names)
