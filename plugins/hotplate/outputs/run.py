"""One batch on its way through the cache of a model's outputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hotplate.durations import NO_LIMIT_NS
from hotplate.keys import Key
from hotplate.outputs.batch import Batch
from hotplate.outputs.conditions import Asked
from hotplate.outputs.families import Members
from hotplate.outputs.scored import (
    BYPASSED,
    COMPARED,
    CUT,
    EXPIRED,
    HIT,
    MISS,
    OFF,
    RULE,
    WORDS,
    Inputs,
    Scored,
    Values,
    form_in,
    short_output,
    values_of,
)
from hotplate.tiers.output_blobs import is_large, is_reference
from hotplate.tiers.outputs import Kept
from hotplate.tiers.shared_outputs import OutputSlot

if TYPE_CHECKING:
    from hotplate.outputs.cache import OutputCache

__all__ = ["Run"]


class Run:
    """One batch on its way through the cache.

    Args:
        cache: the cache.
        given: the batch.
        features: what its rows were made of.
        beside: further columns, for rules.
        is_sampled: whether hits are compared, where that is decided; each is drawn if left out.

    Attributes:
        wanted: the rows that the model is asked for, in the batch's container; None for none.
        model_s: how long the model took for them.
    """

    def __init__(
        self,
        cache: OutputCache,
        given: Any,
        features: Any,
        beside: Mapping[str, Any] | None = None,
        *,
        is_sampled: bool | None = None,
    ) -> None:
        self._began_s = time.perf_counter()
        self.model_s = 0.0
        self._cache = cache
        policy = cache.policy
        self._batch = batch = cache._batch_of(given, beside)
        count = batch.count
        self._now_ns, self._wall_ns = cache.clock.now_ns(), cache.clock.wall_ns()
        self._codes = np.full(count, MISS, np.int16)
        self._members: Members | None = None
        if cache._families is not None:
            self._members = cache._families.members(batch, self._now_ns)
            self._codes[self._members.is_bypassed] = BYPASSED
        self._keys = self._keys_of(batch)
        self._inputs: Inputs | None = None
        if features is not None:
            self._inputs = cache._made_of(features, count)
        self._lacks_features = features is None and cache.needs_features
        self._versions: dict[int, tuple[int, ...]] = {}
        self._era = cache._tier.versions(())
        self._judge(None, np.arange(count))
        self._form = cache._form  # of what is found
        self._found: dict[int, Kept] = {}
        self._mapped: dict[int, Values] = {}  # of what is found, what lies in the blob tier
        self._slots: dict[int, OutputSlot] = {}
        if cache._off:
            self._codes[self._codes == MISS] = OFF
        else:
            self._look()
        self._hits = sorted(self._found)
        self._shadow: list[int] = []
        if policy.dry_run or is_sampled:
            self._shadow = self._hits
        elif policy.shadow_share and is_sampled is None:
            chance = cache._chance.random
            self._shadow = [row for row in self._hits if chance() < policy.shadow_share]
        compared = set(self._shadow)
        self._answered = [row for row in self._hits if row not in compared]
        self._codes[self._shadow] = COMPARED
        self._plan()

    def _keys_of(self, batch: Batch) -> list[bytes]:
        """The key of each row; of those that are bypassed none."""
        schema = self._cache.inputs
        members = self._members
        if members is None or not members.is_bypassed.any():
            return schema.keys(batch)
        keys = [b""] * batch.count
        places = np.flatnonzero(~members.is_bypassed)
        if len(places):
            found = schema.keys(batch.part(places))
            for place, key in zip(places.tolist(), found, strict=True):
                keys[place] = key
        return keys

    def _judge(self, scores: Values | None, rows: Any) -> None:
        """Mark rows that a rule forbids; judged as of now on the rows of the batch."""
        cache = self._cache
        if not cache._rules.rules or not len(rows):
            return
        asked = Asked(self._batch.part(np.asarray(rows)), scores, self._wall_ns)
        verdicts = cache._rules.judge(asked, is_again=scores is not None)
        rows = np.asarray(rows)
        for number, verdict in enumerate(verdicts):
            if verdict.holds.any():
                chosen = rows[verdict.holds]
                self._codes[chosen[self._codes[chosen] < RULE]] = RULE + 16 * (number + 1)
                cache._count_verdict(number, verdict)

    def _look(self) -> None:
        """Find what is in memory and may be served."""
        cache, now_ns = self._cache, self._now_ns
        get: Callable[[bytes], Kept | None] = cache._tier.get
        codes, keys, found = self._codes, self._keys, self._found
        lease = cache._lease
        is_whole = lease is None or lease.is_whole(now_ns)
        rows = np.flatnonzero(codes == MISS).tolist()
        wanted = keys if len(rows) == len(keys) else [keys[row] for row in rows]
        for row, kept in zip(rows, map(get, wanted), strict=True):
            if kept is None:
                continue
            _, deadline_ns, ties, _, is_heard = kept
            if now_ns > deadline_ns:
                codes[row] = EXPIRED
            elif (is_heard and not is_whole) or (ties and any(tie.is_cut for tie in ties)):
                codes[row] = CUT
            elif not cache._is_large or self._is_at_hand(row, kept[0]):
                found[row] = kept
        came = self._look_shared()
        if found:
            rows = sorted(found)  # as in the batch: those from elsewhere came last
            if cache._rules.has_score:
                self._judge(self._values(rows).reshape(len(rows), -1), rows)
                for row in rows:
                    if codes[row] >= RULE:
                        del found[row]
            codes[list(found)] = HIT
        if came and cache._form is not None:
            # what is in memory is all of one form: that of the model here, once it has answered
            items: list[Any] = [
                (keys[row], *found[row][:2], on, is_heard, versions)
                for row, (on, is_heard, versions) in came.items()
                if row in found
            ]
            cache._tier.put(items)
        if came:
            cache._counts.add({"from shared": sum(row in found for row in came)})

    def _is_at_hand(self, row: int, value: bytes) -> bool:
        """Map what is found for a row, where it lies in the blob tier; False where it is gone."""
        if self._form is None or not (is_large(*self._form) and is_reference(value)):
            return True
        mapped = self._cache._mapped(value, self._form)
        if mapped is None:
            self._cache._counts.add({"blob gone": 1})
            return False
        self._mapped[row] = mapped
        return True

    def _look_shared(self) -> dict[int, tuple[tuple[Key, ...], bool, tuple[int, ...]]]:
        """Find in the shared tier what is not in memory.

        Returns:
            By row what is needed to keep it in memory: what it hangs on, whether it may be served
            only while the channel is whole, and the versions of its ties.
        """
        cache, shared, inputs = self._cache, self._cache._shared, self._inputs
        if shared is None or self._lacks_features or (inputs is not None and inputs.views is None):
            return {}
        lease = inputs.lease if inputs is not None else None
        if lease is not None and not lease.is_whole(self._now_ns):
            return {}
        rows = [
            row
            for row in np.flatnonzero(self._codes < RULE).tolist()
            if row not in self._found and self._keys[row]
        ]
        if not rows:
            return {}
        ons = {row: inputs.keys[row] if inputs is not None else () for row in rows}
        # before it is asked whether the rows are there, see the tier
        versions = {row: cache._tier.versions(on) for row, on in ons.items()}
        views = inputs.views if inputs is not None and inputs.views is not None else ()
        of_views = inputs.rows if inputs is not None else ()
        asked = [
            (self._keys[row], list(zip(views, ons[row], (of[row] for of in of_views), strict=True)))
            for row in rows
        ]
        is_heard = lease is not None
        now_ns = cache.clock.now_ns()
        came = {}
        for row, one in zip(rows, shared.look(asked), strict=True):
            if one.slot is not None:
                self._slots[row] = one.slot
            if one.value is None or (inputs is not None and not inputs.are_there(row)):
                continue
            deadline_ns = now_ns + one.left_ns
            if inputs is not None:
                deadline_ns = min(deadline_ns, inputs.deadlines_ns[row])
            form = form_in(one.form, one.value)
            if self._form is None:
                self._form = form
            is_of_form = form is not None and form == self._form
            if deadline_ns > now_ns and is_of_form and self._is_at_hand(row, one.value):
                self._found[row] = (one.value, deadline_ns, (), (), is_heard)
                came[row] = (ons[row], is_heard, versions[row])
        return came

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
        self._fresh: Values | None = None
        self.wanted = self._batch.rows(self._asked) if asked else None

    def _values(self, rows: Sequence[int]) -> Values:
        """What was found for rows; read-only."""
        mapped = self._mapped
        if not mapped:
            return values_of([self._found[row][0] for row in rows], self._form)
        parts = [
            values_of([self._found[row][0]], self._form) if row not in mapped else mapped[row]
            for row in rows
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def take(self, given: Any) -> bool:
        """Check and keep what the model answered for `wanted`.

        Returns:
            Whether it fits what was found; if not, all of the batch is to be asked for once more.

        Raises:
            OutputError: it is not what it must be; nothing is kept.
        """
        cache = self._cache
        fresh = self._fresh = cache._checked(given, len(self._asked))
        if self._form != cache._form:
            if self._found:
                return False
            self._form = cache._form
        place_of: dict[int, int] = {}
        if self._shadow or self._members is not None:
            place_of = {row: place for place, row in enumerate(self._asked.tolist())}
        if self._shadow:
            pairs = [(row, self._same.get(row, row)) for row in self._shadow]
            kept = self._values(self._shadow)
            prefix = "dry_run" if cache.policy.dry_run else "shadow"
            cache._compare(kept, fresh[[place_of[row] for _, row in pairs]], prefix)
        if self._members is not None:
            self._note_outputs(self._members, fresh, place_of)
        wrong = int((~np.isfinite(cache._as_scores(fresh)).all(1)).sum())
        if wrong:
            cache._refuse_numbers(wrong)
        elif not cache._off and not self._lacks_features:
            self._keep(fresh)
        return True

    def _note_outputs(self, members: Members, fresh: Values, place_of: Mapping[int, int]) -> None:
        """Tell the families what was computed of them, where it is not bypassed."""
        cache = self._cache
        assert cache._families is not None
        rows = [row for row in self._asked.tolist() if self._codes[row] < RULE]
        if not rows:
            return
        scores = cache._as_scores(fresh)
        if cache.policy.shadow_decimals is not None:
            scores = np.round(scores, cache.policy.shadow_decimals) + 0.0
        batch = self._batch.part(np.array(rows, np.intp))
        cache._families.note_outputs(
            members,
            rows,
            [self._keys[row] for row in rows],
            cache.inputs.coarser.keys(batch),
            [short_output(scores[place_of[row]].tobytes()) for row in rows],
        )

    def _keep(self, fresh: Values) -> None:
        cache, policy = self._cache, self._cache.policy
        scores = cache._as_scores(fresh)
        before = self._codes.copy()
        if cache._rules.has_score:
            self._judge(scores, self._asked)
        may = self._codes[self._asked] < RULE
        lives = np.full(len(fresh), policy.ttl_ns, np.int64)
        if policy.negative_rule is not None:
            batch = self._batch.part(self._asked)
            is_negative = policy.negative_rule.judge(Asked(batch, scores, self._wall_ns)).holds
            lives[is_negative] = policy.negative_ttl_ns
        self._codes = before  # why a row was computed, not why it was not kept
        places = np.flatnonzero(may).tolist()
        rows, keys = self._asked.tolist(), self._keys
        deadlines = np.minimum(self._now_ns + lives, NO_LIMIT_NS).tolist()
        inputs, now_ns = self._inputs, self._now_ns
        if inputs is not None:
            ends = inputs.deadlines_ns
            places = [
                at
                for at in places
                if rows[at] in self._versions and min(deadlines[at], ends[rows[at]]) > now_ns
            ]
        raw, places = self._raw(fresh, places)
        if inputs is None:
            own = keys if len(rows) == len(keys) else [keys[row] for row in rows]
            if len(places) < len(raw):
                own, raw, deadlines = ([of[at] for at in places] for of in (own, raw, deadlines))
            refused = cache._tier.put_untied(own, raw, deadlines, self._era[0])
            cache._counts.count_kept(len(own), refused)
            if not refused and self._slots:
                lying = zip((rows[at] for at in places), raw, deadlines, strict=True)
                self._share(list(lying))
            return
        items: list[Any] = []
        sharing: list[tuple[int, bytes, int]] = []
        is_heard = inputs.lease is not None
        for at in places:
            row = rows[at]
            deadline_ns = min(deadlines[at], inputs.deadlines_ns[row])
            on, versions = inputs.keys[row], self._versions[row]
            items.append((keys[row], raw[at], deadline_ns, on, is_heard, versions))
            sharing.append((row, raw[at], deadline_ns))
        cache._counts.count_kept(len(items), cache._tier.put(items))
        self._share(sharing)

    def _raw(self, fresh: Values, places: list[int]) -> tuple[list[Any], list[int]]:
        """Of each answer its bytes, or the reference to them in the blob tier.

        Args:
            fresh: the answers.
            places: of those that may be kept.

        Returns:
            The bytes of all answers, None for those that are not to be kept; and the places of
            those that are.
        """
        cache = self._cache
        if not cache._is_large or cache._blobs is None:
            cells = fresh.reshape(len(fresh), -1)
            row_type = np.dtype((np.void, max(1, cells.shape[1] * cells.itemsize)))
            return cells.view(row_type).ravel().tolist(), places
        raw: list[Any] = [None] * len(fresh)
        for at in places:
            raw[at] = cache._blobs.keep(fresh[at : at + 1])
        kept = [at for at in places if raw[at] is not None]
        if len(kept) < len(places):
            cache._counts.add({"blob not kept": len(places) - len(kept)})
        return raw, kept

    def _share(self, items: Sequence[tuple[int, bytes, int]]) -> None:
        """Let other processes have outputs: (row, output, deadline)."""
        cache = self._cache
        if cache._shared is not None and self._slots:
            form = cache._form_of()
            cache._shared.put(
                (self._slots[row], form, value, deadline_ns)
                for row, value, deadline_ns in items
                if row in self._slots
            )

    def answer(self) -> Scored:
        """Everything put together, in the order of the batch."""
        cache, count = self._cache, self._batch.count
        from_cache = np.zeros(count, np.bool_)
        if self._answered:
            from_cache[self._answered] = True
        if self._form is None:
            values = np.empty(0)
        else:
            dtype, shape = self._form
            values = np.empty((count, *shape), dtype)
            if self._mapped and count == 1 and self._answered:
                values = self._mapped[0]  # no copy of what may be large
            elif self._mapped:
                for row in self._answered:
                    values[row] = self._values([row])[0]
            elif self._answered:
                values[self._answered] = self._values(self._answered)
            if self._fresh is not None:
                values[self._asked] = self._fresh
                for row, original in self._same.items():
                    values[row] = values[original]
        self._count()
        if self._members is not None:
            self._note_families(self._members)
        return Scored(values, from_cache, self._codes, cache._rule_names)

    def _note_families(self, members: Members) -> None:
        cache, kinds = self._cache, self._codes & 15
        assert cache._families is not None
        is_hit = (kinds == HIT) | (kinds == COMPARED)
        own_s = time.perf_counter() - self._began_s - self.model_s
        looked = int((kinds != BYPASSED).sum())
        cache._families.note_time(own_s if looked else 0.0, looked, self.model_s, len(self._asked))
        stopped = cache._families.note(members, kinds < RULE, is_hit, self._asked, self._now_ns)
        cache._log_stopped(stopped)

    def _count(self) -> None:
        codes = np.bincount(self._codes & 15, minlength=len(WORDS)).tolist()
        counted = {word: number for word, number in zip(WORDS, codes, strict=True) if number}
        counted |= {"rows": self._batch.count, "computed": len(self._asked)}
        if self._mapped:
            counted["from blobs"] = sum(row in self._mapped for row in self._answered)
        if self._lacks_features:
            counted["without features"] = len(self._asked)
        self._cache._counts.add(counted)
