"""Answers of a model, kept by input.

One object around any callable model: `outputs.score(batch, predict)` gives what `predict(batch)`
would give, from memory where that is allowed. A batch goes through these steps, each for all rows
at once:

1. the key of each row (`inputs`), and what the rules that need no score forbid (`rules`);
2. what is in memory, not past its deadline and with no tie cut; rules that need the score are
   judged on what is found, as of now;
3. some of what was found is computed all the same, compared, and answered as computed (shadow);
4. `predict` answers for all that is left, once for rows that are alike, in one call;
5. what it answered is kept, unless a rule forbids it, the answer is no number, or one of the
   features it came from was invalidated meanwhile.

A model that raises, or answers fewer rows or another shape than before, keeps nothing, and says so.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hotplate.clock import Clock, SystemClock
from hotplate.contracts import Lease
from hotplate.forks import restart_in_children
from hotplate.outputs.batch import Batch, batch_of
from hotplate.outputs.comparable import plain_cell
from hotplate.outputs.conditions import Asked
from hotplate.outputs.errors import OutputError
from hotplate.outputs.explained import OutputExplanation, explained
from hotplate.outputs.families import Families, Family, FamilyStats
from hotplate.outputs.inputs import InputSchema
from hotplate.outputs.policy import OutputPolicy
from hotplate.outputs.rules import Verdict
from hotplate.outputs.run import Run
from hotplate.outputs.scored import (
    CUT,
    EXPIRED,
    MISS,
    ONE_HIT,
    Form,
    Inputs,
    InputsOf,
    Scored,
    Values,
    values_of,
)
from hotplate.outputs.single import RowRules, Single
from hotplate.outputs.stats import OutputCounts, OutputStats
from hotplate.tiers.blobs import BlobTier
from hotplate.tiers.output_blobs import OutputBlobs, is_large, is_reference
from hotplate.tiers.outputs import Kept, OutputTier
from hotplate.tiers.shared_outputs import SharedOutputs

__all__ = ["Inputs", "InputsOf", "OutputCache", "Scored"]

_BESIDE_MAX: Final = 64
_SHOWN_MOST: Final = 16
_log = logging.getLogger("hotplate.outputs")


class OutputCache:
    """The outputs of one version of one model.

    Args:
        name: of the model.
        version: of the model. Another version is another cache.
        inputs: what the model reads.
        policy: how long outputs are kept and which never are.
        inputs_of: where features come from, so that outputs end with them.
        join: makes the tier hear of invalidations.
        clock: where ages come from.
        shared: what other processes computed, or None.
        blobs: where outputs of more than 1 MB a row lie; None to keep them in memory.
    """

    def __init__(
        self,
        name: str,
        version: str,
        inputs: InputSchema,
        policy: OutputPolicy | None = None,
        *,
        inputs_of: InputsOf | None = None,
        join: Callable[[OutputTier], None] = lambda tier: None,
        clock: Clock | None = None,
        shared: SharedOutputs | None = None,
        blobs: BlobTier | None = None,
    ) -> None:
        self._shared = shared
        self._blobs = None if blobs is None else OutputBlobs(blobs)
        self._is_large = False  # whether what the model answers goes there
        self.name, self.version, self.inputs = name, version, inputs
        self.policy = policy or OutputPolicy()
        self.clock = clock or SystemClock()
        self._inputs_of = inputs_of
        self._rules = self.policy.applied
        self._of_row = RowRules.of(self.policy, inputs, ())
        self._of_row_beside: dict[tuple[str, ...], RowRules] = {}
        self._rule_names = tuple(rule.name for rule in self._rules.rules)
        self._tier = OutputTier(self.policy.max_entries, self.policy.bytes_most)
        by = self.policy.families_by
        self._families = (
            None
            if by is None
            else Families(
                by,
                least=self.policy.family_least,
                pays_from=self.policy.family_pays_from,
                pause_ns=self.policy.family_pause_ns,
            )
        )
        self._form: Form | None = None  # of what this process' model answers
        self._one_row = 1, len(inputs.fields)
        self._off = ""
        self._lease: Lease | None = None
        self._lock = threading.Lock()
        self._counts = OutputCounts()
        self._chance = random.Random()
        join(self._tier)
        restart_in_children(self)
        if self.policy.rules_off:
            _log.warning(
                "%s: its %d rules are NOT applied: %s",
                self._shown,
                len(self.policy.rule_set.rules),
                self.policy.rules_off,
            )

    def restart_after_fork(self) -> None:
        """Make new locks: the parent's may have been held by threads that are not here."""
        self._lock = threading.Lock()
        self._counts.restart_after_fork()
        self._tier.restart_after_fork()
        if self._families is not None:
            self._families.restart_after_fork()

    def __repr__(self) -> str:
        return f"OutputCache({self.name!r}, {self.version!r}, {len(self._tier)} outputs)"

    @property
    def _shown(self) -> str:
        return f"outputs of model {self.name!r}, version {self.version!r}"

    @property
    def is_off(self) -> str:
        """Why nothing is answered from the cache, or nothing."""
        return self._off

    def switch_on(self) -> None:
        """Let the cache answer again after it has switched itself off; it begins empty."""
        self.clear()
        with self._lock:
            self._off = ""
            self._counts.begin_anew(("shadow_compared", "shadow_differed"))

    def switch_off(self, why: str) -> None:
        """Answer nothing from the cache until `switch_on`."""
        with self._lock:
            self._off = why
        self.clear()
        _log.error("%s: the cache is off: %s", self._shown, why)

    def clear(self) -> None:
        """Forget all outputs, those of other processes too, and refuse what is being computed."""
        self._tier.clear()
        if self._shared is not None:
            self._shared.forget()

    def release(self, most: int) -> int:
        """Let go of some outputs of this process, as of a version that is no longer asked.

        To drop a cache of a million at once stops all threads for most of a second. What other
        processes computed is left alone: they may still ask this version, and it expires.

        Args:
            most: how many at the most, the least recently used first.

        Returns:
            How many are left.
        """
        return self._tier.release(most)

    # -- scoring ----------------------------------------------------------------------------------

    def score(
        self,
        batch: Any,
        predict: Callable[[Any], Any],
        *,
        features: Any = None,
        beside: Mapping[str, Any] | None = None,
    ) -> Scored:
        """What `predict(batch)` would answer.

        Args:
            batch: inputs in any form, see `hotplate.outputs.batch`; columns that the model does not
                read are for rules.
            predict: the model: takes rows of the batch in the container that it came in, returns an
                array of (rows,) or (rows, columns). Called at most once, with the rows that the
                cache does not answer; but for a model whose first answer here is of another form
                than what other processes shared of this version: then it is asked for all.
            features: the answer of the store (`get_online_features` or a reader) whose row i was
                read for row i of the batch, or several of them. Outputs end with these features;
                without them nothing is kept, unless the policy says that the model reads none.
            beside: name -> a value a row: what rules and families ask for and the model does not
                read, where the batch is a matrix and cannot hold it.

        Raises:
            OutputError: inputs or outputs are not as they must be; nothing is kept.
            Exception: whatever the model raised.
        """
        run = self._begin(batch, features, beside)
        if isinstance(run, Scored):
            return run
        if run.wanted is not None:
            with self._counting_errors():
                began_s = time.perf_counter()
                answered = predict(run.wanted)
                run.model_s = time.perf_counter() - began_s
                is_done = run.take(answered)
            if not is_done:
                return self.score(batch, predict, features=features, beside=beside)
        return run.answer()

    async def score_async(
        self,
        batch: Any,
        predict: Callable[[Any], Any],
        *,
        features: Any = None,
        beside: Mapping[str, Any] | None = None,
    ) -> Scored:
        """The same on an event loop: `predict` is a coroutine function, or is run on a thread."""
        if not self._waits:
            run = self._begin(batch, features, beside)
        else:
            run = await asyncio.to_thread(self._begin, batch, features, beside)
        if isinstance(run, Scored):
            return run
        if run.wanted is not None:
            with self._counting_errors():
                began_s = time.perf_counter()
                if inspect.iscoroutinefunction(predict):
                    answered = await predict(run.wanted)
                else:
                    answered = await asyncio.to_thread(predict, run.wanted)
                run.model_s = time.perf_counter() - began_s
                if self._waits or (self._blobs is not None and self._form is None):
                    is_done = await asyncio.to_thread(run.take, answered)
                else:
                    is_done = run.take(answered)
            if not is_done:
                return await self.score_async(batch, predict, features=features, beside=beside)
        return run.answer()

    @property
    def _waits(self) -> bool:
        """Whether a score waits for a server or a disk."""
        return self._shared is not None or self._is_large

    @contextmanager
    def _counting_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._counts.add({"model_errors": 1})
            raise

    def _begin(
        self, batch: Any, features: Any, beside: Mapping[str, Any] | None
    ) -> Scored | Single | Run:
        """What is answered from memory, or what asks the model for the rest."""
        is_sampled: bool | None = None
        if type(batch) is np.ndarray and batch.shape == self._one_row:
            is_sampled = self._chance.random() < self.policy.shadow_share
            if not is_sampled and (found := self._short(batch, beside)) is not None:
                if isinstance(found, Single):
                    found.made_of(features)
                return found
        return Run(self, batch, features, beside, is_sampled=is_sampled)

    def _short(self, row: Values, beside: Mapping[str, Any] | None) -> Scored | Single | None:
        """One row of a matrix, without arrays; None where only the long way can tell."""
        form = self._form
        if form is None or self._off or self.policy.dry_run:
            return None
        began_s = time.perf_counter()
        rules, further = self._of_row, None
        if beside:
            further = _cells_of(beside)
            if further is None:
                return None
            rules = self._rules_beside(tuple(further))
        if not rules.is_whole:
            return None
        family = None
        if self._families is not None:
            family = self._families.of_row(row[0], self.inputs.places, further)
            if family is None or family.until_ns:
                return None
        cells = row[0].tolist()
        key = self.inputs.key_of_row(row, cells)
        if key is None:
            return None
        kept: Kept | None = self._tier.get(key)
        now_ns = self.clock.now_ns()
        code = MISS
        if further:
            cells += further.values()
        if kept is not None:
            value, deadline_ns, ties, _, is_heard = kept
            if now_ns > deadline_ns:
                code = EXPIRED
            elif (ties and any(tie.is_cut for tie in ties)) or (
                is_heard and not (self._lease is not None and self._lease.is_whole(now_ns))
            ):
                code = CUT
            else:
                return self._hit(value, form, rules, cells, family)
        if self._shared is not None or self._is_large:
            return None
        wall_ns = self.clock.wall_ns()
        try:
            held = rules.held(cells, None, wall_ns)
        except Exception:  # noqa: BLE001 - the long way says what it is
            return None
        return Single(
            self,
            row,
            beside,
            cells=cells,
            key=key,
            code=code,
            rules=rules,
            held=held,
            family=family,
            now_ns=now_ns,
            wall_ns=wall_ns,
            began_s=began_s,
        )

    def _hit(
        self, value: bytes, form: Form, rules: RowRules, cells: list[Any], family: Family | None
    ) -> Scored | None:
        """Answer one row with what is in memory, unless a rule forbids it."""
        scores: Any = ()
        is_mapped = self._is_large and is_reference(value)
        if is_mapped:
            found = self._mapped(value, form)
            if found is None:
                return None
            values = found
            scores = values.ravel()  # a rule reads one number: a million need not become floats
        else:
            dtype, shape = form
            values = np.ndarray((1, *shape), dtype, bytearray(value))  # the caller's own
            if self._rules.has_score:
                is_plain = dtype.char in "dfe"  # the rest may not fit into a float
                if is_plain and values.size == 1:
                    scores = (values.item(),)
                else:
                    scores = (values.ravel() if is_plain else self._as_scores(values)[0]).tolist()
        if self._rules.rules and rules.forbid(cells, scores, self.clock.wall_ns()):
            return None
        self._counts.count_hit()
        if is_mapped:
            self._counts.add({"from blobs": 1})
        if self._families is not None and family is not None:
            self._families.note_hit(family)
        return Scored(values, *ONE_HIT, self._rule_names)

    def _rules_beside(self, names: tuple[str, ...]) -> RowRules:
        """The rules for one row that has further cells behind it."""
        found = self._of_row_beside.get(names)
        if found is None:
            found = RowRules.of(self.policy, self.inputs, names)
            if len(self._of_row_beside) < _BESIDE_MAX:
                self._of_row_beside[names] = found
        return found

    @property
    def needs_features(self) -> bool:
        """Whether nothing is kept unless it is said which features it came from."""
        return self._inputs_of is not None and self.policy.needs_features

    def _made_of(self, features: Any, count: int) -> Inputs:
        """What the rows of a batch were made of.

        Raises:
            OutputError: that cannot be told.
        """
        if self._inputs_of is None:
            raise OutputError(
                where=self._shown,
                problem="knows no store that features come from",
                fix="Make it with hotplate.of(store).outputs(...).",
            )
        inputs = self._inputs_of(features, count)
        self._lease = inputs.lease or self._lease
        return inputs

    def explain(self, batch: Any, *, beside: Mapping[str, Any] | None = None) -> OutputExplanation:
        """Why one input would or would not be answered from memory now.

        Args:
            batch: one row.
            beside: as `score`.

        Raises:
            OutputError: it is not one row, or not as it must be.
        """
        return explained(self, self._batch_of(batch, beside))

    def stats(self) -> OutputStats:
        """Counts since the start."""
        tier = self._tier
        return OutputStats(
            self.name,
            self.version,
            self._counts.snapshot(),
            len(tier),
            tier.size_bytes,
            tier.evicted,
            tier.invalidated,
            self._off,
            self._rule_names,
        )

    def stats_after(self) -> Callable[[], OutputStats]:
        """What says what was counted, once this cache is no more."""
        return partial(_stats_after, self.name, self.version, self._counts, self._tier)

    def families(self) -> tuple[FamilyStats, ...]:
        """Counts by family, those with the most rows first; none where the policy names none."""
        return () if self._families is None else self._families.stats(self.clock.now_ns())

    # -- counts ------------------------------------------------------------------------------------

    def _count_rule(self, number: int, held: int, unsure: int) -> None:
        """Count the rows that a rule forbade, and of how many it could not tell."""
        self._counts.count_rule(self._rule_names[number], held, unsure)

    def _count_verdict(self, number: int, verdict: Verdict) -> None:
        self._count_rule(number, int(verdict.holds.sum()), int(verdict.unknown.sum()))
        if verdict.error is not None:
            name = self._rule_names[number]
            self._counts.add({f"rule error: {name}": 1})
            _log.warning(
                "%s: rule %r could not be judged, so nothing of the batch is cached: %s",
                self._shown,
                name,
                verdict.error,
            )

    def _is_forbidden(self, asked: Asked) -> bool:
        """Whether a rule that needs the score forbids one row."""
        verdicts = self._rules.judge(asked, is_again=True)
        for number, verdict in enumerate(verdicts):
            if verdict.holds.any():
                self._count_verdict(number, verdict)
        return any(verdict.holds.any() for verdict in verdicts)

    def _refuse_numbers(self, count: int) -> None:
        """Count answers that are no numbers."""
        self._counts.add({"not finite": count})
        _log.warning("%s: %d answers are no numbers; none is kept", self._shown, count)

    def _log_stopped(self, families: Sequence[str]) -> None:
        for name in families:
            _log.info(
                "%s: family %r is bypassed for a while: its hits do not pay", self._shown, name
            )

    # -- outputs as bytes, here or in the blob tier ------------------------------------------------

    def _batch_of(self, given: Any, beside: Mapping[str, Any] | None = None) -> Batch:
        found = batch_of(given, self.inputs.names, self.inputs.lists)
        return found.with_beside(beside) if beside else found

    def _found(self, value: bytes) -> Values | None:
        """What memory holds for one row; None where it lies in the blob tier, and is gone."""
        assert self._form is not None
        if self._is_large and is_reference(value):
            return self._mapped(value, self._form)
        return values_of([value], self._form)

    def _mapped(self, reference: bytes, form: Form) -> Values | None:
        """What a reference stands for, read-only; None where it is gone."""
        return None if self._blobs is None else self._blobs.find(reference, *form)

    @staticmethod
    def _as_scores(values: Values) -> npt.NDArray[np.float64]:
        return np.asarray(values, np.float64).reshape(len(values), -1)

    def _form_of(self) -> bytes:
        """The form of an output, as it stands in the shared tier."""
        assert self._form is not None
        dtype, shape = self._form
        return f"{dtype.str}:{','.join(map(str, shape))}".encode()

    def _checked(self, given: Any, count: int) -> Values:
        """What the model answered, if it is of the shape that it must be."""
        values = np.asarray(given)
        if values.dtype.kind not in "fiub":
            raise self._wrong(f"answered {values.dtype}", "Return an array of numbers.")
        if values.ndim == 0 or len(values) != count:
            rows = "one value" if values.ndim == 0 else f"{len(values):,} rows"
            raise self._wrong(f"answered {rows} for {count:,}", "Return a row for each input.")
        form = values.dtype.newbyteorder("="), values.shape[1:]
        if self._form is None:
            self._is_large = self._blobs is not None and is_large(*form)
            self._form = form
        if form != self._form:
            before, now = (f"{kind} {shape}" for kind, shape in (self._form, form))
            self.clear()  # of which model they are, who knows
            raise self._wrong(
                f"answered rows of {now}, and of {before} before",
                "One version of a model has one form of output.",
            )
        return np.ascontiguousarray(values.astype(form[0], copy=False))

    def _wrong(self, problem: str, fix: str) -> OutputError:
        return OutputError(where=f"model {self.name!r}", problem=problem, fix=fix)

    # -- shadow -----------------------------------------------------------------------------------

    def _compare(self, kept: Values, fresh: Values, prefix: str) -> None:
        """Count hits that were computed all the same, and switch off where too many differ."""
        places = self.policy.shadow_decimals
        left, right = (self._as_scores(one) for one in (kept, fresh))
        if places is not None:
            is_same = np.abs(left - right) <= 0.5 * 10.0**-places
        else:
            is_same = left == right
        differed = ~(is_same | (np.isnan(left) & np.isnan(right))).all(1)
        count = int(differed.sum())
        counts = self._counts.add({f"{prefix}_compared": len(left), f"{prefix}_differed": count})
        compared, share = counts[0], counts[1] / counts[0]
        for place in np.flatnonzero(differed).tolist():
            _log.error(
                "%s: a cached output differs from a fresh one: %s, not %s",
                self._shown,
                *_apart(left[place], right[place]),
            )
        is_enough = compared >= self.policy.shadow_least
        if prefix == "shadow" and count and is_enough and share > self.policy.shadow_limit_share:
            self.switch_off(
                f"{share:.2%} of {compared:,} compared outputs differed from fresh ones"
            )


def _stats_after(name: str, version: str, counts: OutputCounts, tier: OutputTier) -> OutputStats:
    return OutputStats(name, version, counts.snapshot(), 0, 0, tier.evicted, tier.invalidated, "")


def _apart(left: Values, right: Values) -> tuple[list[float], list[float]]:
    """Two outputs; of those of many numbers the first few that differ."""
    if left.size > _SHOWN_MOST:
        places = np.flatnonzero(left != right)[:_SHOWN_MOST]
        left, right = left[places], right[places]
    return left.tolist(), right.tolist()


def _cells_of(beside: Mapping[str, Any]) -> dict[str, float | str] | None:
    """What is beside one row, if all of it are plain numbers and texts."""
    found: dict[str, float | str] = {}
    for name, values in beside.items():
        try:
            if len(values) != 1:
                return None
            cell = plain_cell(values)
        except (TypeError, LookupError):  # the long way says what it is
            return None
        if cell is None:
            return None
        found[name] = cell
    return found
