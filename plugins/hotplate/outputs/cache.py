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
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from hotplate.clock import Clock, SystemClock
from hotplate.contracts import Lease
from hotplate.durations import NO_LIMIT_NS
from hotplate.forks import restart_in_children
from hotplate.keys import Key
from hotplate.outputs.batch import Batch, batch_of
from hotplate.outputs.errors import OutputError
from hotplate.outputs.explained import OutputExplanation
from hotplate.outputs.inputs import InputSchema
from hotplate.outputs.policy import OutputPolicy
from hotplate.outputs.rules import Asked, Verdict
from hotplate.outputs.stats import OutputStats
from hotplate.tiers.outputs import Kept, OutputTier

__all__ = ["Inputs", "InputsOf", "OutputCache", "Scored"]

_log = logging.getLogger("hotplate.outputs")
_Values: TypeAlias = npt.NDArray[Any]
_Mask: TypeAlias = npt.NDArray[np.bool_]

HIT, MISS, EXPIRED, CUT, COMPARED, RULE, OFF = range(7)  # from RULE on nothing is kept
_YES: Final = np.ones(1, np.bool_)
_HIT: Final = np.zeros(1, np.int16)
_WORDS: Final = ("hit", "miss", "expired", "invalidated", "compared", "rule", "off")


@dataclass(frozen=True)
class Inputs:
    """The rows of features that each row of a batch was made of.

    Attributes:
        keys: for each row the entities it hangs on.
        deadlines_ns: for each row when the first of its features may no longer be served.
        are_there: for each row whether all of them are still what the cache holds.
        lease: under which they may be served; None where nothing else than age bounds them.
    """

    keys: Sequence[tuple[Key, ...]]
    deadlines_ns: Sequence[int]
    are_there: Callable[[int], bool]
    lease: Lease | None = None


class InputsOf(Protocol):
    """Where features come from: the cache of a store."""

    def __call__(self, features: Any, count: int) -> Inputs:
        """What the rows of an answer of the store were made of.

        Raises:
            OutputError: it is none, or of another number of rows.
        """


@dataclass(frozen=True)
class Scored:
    """What a batch was answered.

    Attributes:
        values: the outputs, as the model shapes them: (rows,) or (rows, columns).
        from_cache: bool (rows), whether each came from memory.
        why: for each row `"hit"`, or why it was computed: `"miss"`, `"expired"`, `"invalidated"`,
            `"compared"` (it was in memory, and a sample of these is checked), `"off"`,
            `"rule: NAME"`.
    """

    values: _Values
    from_cache: _Mask
    _codes: npt.NDArray[np.int16]
    _rules: tuple[str, ...]

    @property
    def why(self) -> list[str]:
        """See above; made when asked for."""
        return [_word(code, self._rules) for code in self._codes.tolist()]


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
    ) -> None:
        self.name, self.version, self.inputs = name, version, inputs
        self.policy = policy or OutputPolicy()
        self.clock = clock or SystemClock()
        self._inputs_of = inputs_of
        self._rules = self.policy.applied
        self._rule_names = tuple(rule.name for rule in self._rules.rules)
        self._tier = OutputTier(self.policy.max_entries, self.policy.bytes_most)
        self._form: tuple[np.dtype[Any], tuple[int, ...]] | None = None
        self._off = ""
        self._lease: Lease | None = None
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
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
        self._tier.restart_after_fork()

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
        self._tier.clear()
        with self._lock:
            self._off = ""
            for name in ("shadow_compared", "shadow_differed"):
                self._counts[f"{name}_before"] += self._counts.pop(name, 0)

    def switch_off(self, why: str) -> None:
        """Answer nothing from the cache until `switch_on`."""
        with self._lock:
            self._off = why
        self._tier.clear()
        _log.error("%s: the cache is off: %s", self._shown, why)

    def clear(self) -> None:
        """Forget all outputs, and refuse those that are being computed."""
        self._tier.clear()

    # -- scoring ----------------------------------------------------------------------------------

    def score(self, batch: Any, predict: Callable[[Any], Any], *, features: Any = None) -> Scored:
        """What `predict(batch)` would answer.

        Args:
            batch: inputs in any form, see `hotplate.outputs.batch`; columns that the model does not
                read are for rules.
            predict: the model: takes rows of the batch in the container that it came in, returns an
                array of (rows,) or (rows, columns). Called at most once, with the rows that the
                cache does not answer.
            features: the answer of the store (`get_online_features` or a reader) whose row i was
                read for row i of the batch, or several of them. Outputs end with these features;
                without them nothing is kept, unless the policy says that the model reads none.

        Raises:
            OutputError: inputs or outputs are not as they must be; nothing is kept.
            Exception: whatever the model raised.
        """
        if (
            type(batch) is np.ndarray
            and len(batch) == 1
            and (found := self._hit(batch)) is not None
        ):
            return found
        run = _Run(self, batch, features)
        if run.wanted is not None:
            try:
                run.take(predict(run.wanted))
            except BaseException:
                self._counts["model_errors"] += 1
                raise
        return run.answer()

    async def score_async(
        self, batch: Any, predict: Callable[[Any], Any], *, features: Any = None
    ) -> Scored:
        """The same on an event loop: `predict` is a coroutine function, or is run on a thread."""
        run = _Run(self, batch, features)
        if run.wanted is not None:
            try:
                if inspect.iscoroutinefunction(predict):
                    run.take(await predict(run.wanted))
                else:
                    run.take(await asyncio.to_thread(predict, run.wanted))
            except BaseException:
                self._counts["model_errors"] += 1
                raise
        return run.answer()

    def _hit(self, row: _Values) -> Scored | None:
        """One row of a matrix from memory, where no rule forbids it; None for the long way."""
        policy = self.policy
        if self._off or policy.dry_run or self._form is None:
            return None
        key = self.inputs.key_of_row(row)
        kept: Kept | None = None if key is None else self._tier.get(key)
        if kept is None:
            return None
        value, deadline_ns, ties, _, is_heard = kept
        if self.clock.now_ns() > deadline_ns or is_heard or any(tie.is_cut for tie in ties):
            return None
        if policy.shadow_share and self._chance.random() < policy.shadow_share:
            return None
        dtype, shape = self._form
        values = np.frombuffer(value, dtype).reshape(1, *shape)
        if self._rules.rules:
            scores = self._as_scores(values)
            asked = Asked(self._batch_of(row), scores, self.clock.wall_ns())
            if any(verdict.holds[0] for verdict in self._rules.judge(asked)):
                return None
        with self._lock:
            self._counts["rows"] += 1
            self._counts["hit"] += 1
        return Scored(values, _YES, _HIT, self._rule_names)

    def explain(self, batch: Any) -> OutputExplanation:
        """Why one input would or would not be answered from memory now.

        Args:
            batch: one row.

        Raises:
            OutputError: it is not one row, or not as it must be.
        """
        rows = self._batch_of(batch)
        if rows.count != 1:
            raise OutputError(where="explain", problem="takes one row", fix="Give one.")
        (key,) = self.inputs.keys(rows)
        now_ns = self.clock.now_ns()
        kept = self._tier.get(key)
        value, deadline_ns, ties = (None, 0, ()) if kept is None else kept[:3]
        scores = None if value is None else self._as_scores(self._values([value]))
        verdicts = self._rules.judge(Asked(rows, scores, self.clock.wall_ns()))
        return OutputExplanation(
            model=self.name,
            version=self.version,
            off=self._off or ("dry run" if self.policy.dry_run else ""),
            rules=tuple(
                (rule.name, rule.reason, _said(verdict, rule.needs_score and scores is None))
                for rule, verdict in zip(self._rules.rules, verdicts, strict=True)
            ),
            kept=None if value is None else tuple(np.ravel(self._values([value])).tolist()),
            expires_in_s=None if value is None else (deadline_ns - now_ns) / 1e9,
            is_invalidated=any(tie.is_cut for tie in ties),
        )

    def stats(self) -> OutputStats:
        """Counts since the start."""
        with self._lock:
            counts = dict(self._counts)
        tier = self._tier
        return OutputStats(
            self.name,
            self.version,
            counts,
            len(tier),
            tier.size_bytes,
            tier.evicted,
            tier.invalidated,
            self._off,
        )

    # -- outputs as bytes -------------------------------------------------------------------------

    def _batch_of(self, given: Any) -> Batch:
        return batch_of(given, self.inputs.names, self.inputs.lists)

    def _values(self, found: Sequence[bytes]) -> _Values:
        assert self._form is not None
        dtype, shape = self._form
        return np.frombuffer(b"".join(found), dtype).reshape(len(found), *shape)

    @staticmethod
    def _as_scores(values: _Values) -> npt.NDArray[np.float64]:
        return np.asarray(values, np.float64).reshape(len(values), -1)

    def _checked(self, given: Any, count: int) -> _Values:
        """What the model answered, if it is of the shape that it must be."""
        values = np.asarray(given)
        if values.dtype.kind not in "fiub":
            raise self._wrong(f"answered {values.dtype}", "Return an array of numbers.")
        if values.ndim == 0 or len(values) != count:
            rows = "one value" if values.ndim == 0 else f"{len(values):,} rows"
            raise self._wrong(f"answered {rows} for {count:,}", "Return a row for each input.")
        form = values.dtype.newbyteorder("="), values.shape[1:]
        if self._form is None:
            self._form = form
        if form != self._form:
            before, now = (f"{kind} {shape}" for kind, shape in (self._form, form))
            self._tier.clear()  # of which model they are, who knows
            raise self._wrong(
                f"answered rows of {now}, and of {before} before",
                "One version of a model has one form of output.",
            )
        return np.ascontiguousarray(values.astype(form[0], copy=False))

    def _wrong(self, problem: str, fix: str) -> OutputError:
        return OutputError(where=f"model {self.name!r}", problem=problem, fix=fix)

    # -- shadow -----------------------------------------------------------------------------------

    def _compare(self, kept: _Values, fresh: _Values, prefix: str) -> None:
        """Count hits that were computed all the same, and switch off where too many differ."""
        places = self.policy.shadow_decimals
        left, right = (self._as_scores(one) for one in (kept, fresh))
        if places is not None:
            is_same = np.abs(left - right) <= 0.5 * 10.0**-places
        else:
            is_same = left == right
        differed = ~(is_same | (np.isnan(left) & np.isnan(right))).all(1)
        count = int(differed.sum())
        with self._lock:
            self._counts[f"{prefix}_compared"] += len(left)
            self._counts[f"{prefix}_differed"] += count
            compared = self._counts[f"{prefix}_compared"]
            share = self._counts[f"{prefix}_differed"] / compared
        for place in np.flatnonzero(differed).tolist():
            _log.error(
                "%s: a cached output differs from a fresh one: %s, not %s",
                self._shown,
                left[place].tolist(),
                right[place].tolist(),
            )
        is_enough = compared >= self.policy.shadow_least
        if prefix == "shadow" and count and is_enough and share > self.policy.shadow_limit_share:
            self.switch_off(
                f"{share:.2%} of {compared:,} compared outputs differed from fresh ones"
            )


class _Run:
    """One batch on its way through the cache.

    Attributes:
        wanted: the rows that the model is asked for, in the batch's container; None for none.
    """

    def __init__(self, cache: OutputCache, given: Any, features: Any) -> None:
        self._cache = cache
        policy = cache.policy
        self._batch = batch = cache._batch_of(given)
        count = batch.count
        self._now_ns, self._wall_ns = cache.clock.now_ns(), cache.clock.wall_ns()
        self._codes = np.full(count, MISS, np.int16)
        self._keys = cache.inputs.keys(batch)
        self._inputs: Inputs | None = None
        if features is not None:
            if cache._inputs_of is None:
                raise OutputError(
                    where=cache._shown,
                    problem="knows no store that features come from",
                    fix="Make it with hotplate.of(store).outputs(...).",
                )
            self._inputs = cache._inputs_of(features, count)
            cache._lease = self._inputs.lease or cache._lease
        self._lacks_features = (
            features is None and cache._inputs_of is not None and policy.needs_features
        )
        self._versions: dict[int, tuple[int, ...]] = {}
        self._era = cache._tier.versions(())
        self._judge(None, np.arange(count))
        self._found: dict[int, Kept] = {}
        if cache._off:
            self._codes[self._codes == MISS] = OFF
        else:
            self._look()
        self._hits = sorted(self._found)
        self._shadow: list[int] = []
        if policy.dry_run:
            self._shadow = self._hits
        elif policy.shadow_share:
            chance = cache._chance.random
            self._shadow = [row for row in self._hits if chance() < policy.shadow_share]
        compared = set(self._shadow)
        self._answered = [row for row in self._hits if row not in compared]
        self._codes[self._shadow] = COMPARED
        self._plan()

    def _judge(self, scores: _Values | None, rows: Any) -> None:
        """Mark rows that a rule forbids; judged as of now on the rows of the batch."""
        cache = self._cache
        if not cache._rules.rules or not len(rows):
            return
        is_all = len(rows) == self._batch.count
        batch = self._batch if is_all else cache._batch_of(self._batch.rows(np.asarray(rows)))
        verdicts = cache._rules.judge(Asked(batch, scores, self._wall_ns))
        rows = np.asarray(rows)
        for number, verdict in enumerate(verdicts):
            if verdict.holds.any():
                chosen = rows[verdict.holds]
                self._codes[chosen[self._codes[chosen] < RULE]] = RULE + 16 * (number + 1)
                self._count_verdict(cache._rule_names[number], verdict)

    def _count_verdict(self, name: str, verdict: Verdict) -> None:
        counts = self._cache._counts
        with self._cache._lock:
            counts[f"rule: {name}"] += int(verdict.holds.sum())
            unknown = int(verdict.unknown.sum())
            if unknown:
                counts[f"rule unknown: {name}"] += unknown
            if verdict.error is not None:
                counts[f"rule error: {name}"] += 1
        if verdict.error is not None:
            _log.warning(
                "%s: rule %r could not be judged, so nothing of the batch is cached: %s",
                self._cache._shown,
                name,
                verdict.error,
            )

    def _look(self) -> None:
        """Find what is in memory and may be served."""
        cache, now_ns = self._cache, self._now_ns
        get, codes, keys, found = cache._tier.get, self._codes, self._keys, self._found
        lease = cache._lease
        is_whole = lease is None or (lease.is_valid(now_ns) and not lease.unheard[0])
        for row in np.flatnonzero(codes == MISS).tolist():
            kept: Kept | None = get(keys[row])
            if kept is None:
                continue
            _, deadline_ns, ties, _, is_heard = kept
            if now_ns > deadline_ns:
                codes[row] = EXPIRED
            elif (is_heard and not is_whole) or (ties and any(tie.is_cut for tie in ties)):
                codes[row] = CUT
            else:
                found[row] = kept
        if found:
            rows = list(found)
            if cache._rules.has_score:
                scores = cache._as_scores(cache._values([found[row][0] for row in rows]))
                self._judge(scores, rows)
                for row in rows:
                    if codes[row] >= RULE:
                        del found[row]
            codes[list(found)] = HIT

    def _plan(self) -> None:
        """What the model is asked for: each of the rows that are alike once, if it may be kept."""
        self._same: dict[int, int] = {}
        keys, codes = self._keys, self._codes.tolist()
        if not self._answered and not (self._codes >= RULE).any() and len(set(keys)) == len(keys):
            asked = list(range(len(keys)))
        else:
            answered = set(self._answered)
            first: dict[bytes, int] = {}
            asked = []
            for row, code in enumerate(codes):
                if row in answered:
                    continue
                if code < RULE and first.setdefault(keys[row], row) != row:
                    self._same[row] = first[keys[row]]
                else:
                    asked.append(row)
        self._asked = np.array(asked, np.intp)
        if self._inputs is not None:
            tier, on = self._cache._tier, self._inputs.keys
            for row in asked:
                if codes[row] < RULE:
                    versions = tier.versions(on[row])
                    if self._inputs.are_there(row):  # after the versions were taken, see the tier
                        self._versions[row] = versions
        self._fresh: _Values | None = None
        self.wanted = self._batch.rows(self._asked) if asked else None

    def take(self, given: Any) -> None:
        """Check and keep what the model answered for `wanted`.

        Raises:
            OutputError: it is not what it must be; nothing is kept.
        """
        cache = self._cache
        fresh = self._fresh = cache._checked(given, len(self._asked))
        place_of = {row: place for place, row in enumerate(self._asked.tolist())}
        if self._shadow:
            pairs = [(row, self._same.get(row, row)) for row in self._shadow]
            kept = cache._values([self._found[row][0] for row, _ in pairs])
            prefix = "dry_run" if cache.policy.dry_run else "shadow"
            cache._compare(kept, fresh[[place_of[row] for _, row in pairs]], prefix)
        wrong = int((~np.isfinite(cache._as_scores(fresh)).all(1)).sum())
        if wrong:
            with cache._lock:
                cache._counts["not finite"] += wrong
            _log.warning("%s: %d answers are no numbers; none is kept", cache._shown, wrong)
        elif not cache._off and not self._lacks_features:
            self._keep(fresh)

    def _keep(self, fresh: _Values) -> None:
        cache, policy = self._cache, self._cache.policy
        scores = cache._as_scores(fresh)
        before = self._codes.copy()
        if cache._rules.has_score:
            self._judge(scores, self._asked)
        may = self._codes[self._asked] < RULE
        lives = np.full(len(fresh), policy.ttl_ns, np.int64)
        if policy.negative_rule is not None:
            batch = cache._batch_of(self._batch.rows(self._asked))
            is_negative = policy.negative_rule.judge(Asked(batch, scores, self._wall_ns)).holds
            lives[is_negative] = policy.negative_ttl_ns
        self._codes = before  # why a row was computed, not why it was not kept
        cells = fresh.reshape(len(fresh), -1)
        row_type = np.dtype((np.void, max(1, cells.shape[1] * cells.itemsize)))
        raw: list[Any] = cells.view(row_type).ravel().tolist()
        places = np.flatnonzero(may).tolist()
        rows, keys = self._asked.tolist(), self._keys
        deadlines = np.minimum(self._now_ns + lives, NO_LIMIT_NS).tolist()
        inputs, now_ns = self._inputs, self._now_ns
        if inputs is None:
            if len(places) < len(raw):
                raw, deadlines = [raw[at] for at in places], [deadlines[at] for at in places]
            own = [keys[rows[at]] for at in places]
            refused = cache._tier.put_untied(own, raw, deadlines, self._era[0])
            self._count_kept(len(own), refused)
            return
        items: list[Any] = []
        is_heard = inputs.lease is not None
        for at in places:
            row = rows[at]
            versions = self._versions.get(row)
            deadline_ns = min(deadlines[at], inputs.deadlines_ns[row])
            if versions is not None and deadline_ns > now_ns:
                on = inputs.keys[row]
                items.append((keys[row], raw[at], deadline_ns, on, is_heard, versions))
        self._count_kept(len(items), cache._tier.put(items))

    def _count_kept(self, wanted: int, refused: int) -> None:
        with self._cache._lock:
            self._cache._counts["kept"] += wanted - refused
            self._cache._counts["refused"] += refused

    def answer(self) -> Scored:
        """Everything put together, in the order of the batch."""
        cache, count = self._cache, self._batch.count
        from_cache = np.zeros(count, np.bool_)
        if self._answered:
            from_cache[self._answered] = True
        if cache._form is None:
            values = np.empty(0)
        else:
            dtype, shape = cache._form
            values = np.empty((count, *shape), dtype)
            if self._answered:
                values[self._answered] = cache._values(
                    [self._found[row][0] for row in self._answered]
                )
            if self._fresh is not None:
                values[self._asked] = self._fresh
                for row, original in self._same.items():
                    values[row] = values[original]
        self._count(from_cache)
        return Scored(values, from_cache, self._codes, cache._rule_names)

    def _count(self, from_cache: _Mask) -> None:
        codes = np.bincount(np.minimum(self._codes & 15, OFF), minlength=OFF + 1).tolist()
        with self._cache._lock:
            counts = self._cache._counts
            counts["rows"] += self._batch.count
            counts["computed"] += len(self._asked)
            if self._lacks_features:
                counts["without features"] += len(self._asked)
            for word, number in zip(_WORDS, codes, strict=True):
                if number:
                    counts[word] += number


def _word(code: int, rules: Sequence[str]) -> str:
    kind = code & 15
    return f"rule: {rules[(code >> 4) - 1]}" if kind == RULE else _WORDS[kind]


def _said(verdict: Verdict, is_open: bool) -> str:
    if verdict.error is not None:
        return f"error: {verdict.error}"
    if is_open:
        return "needs the score"
    return ("unknown" if verdict.unknown[0] else "yes") if verdict.holds[0] else "no"
