"""What a miss asks the shared tier: rows that other processes loaded, and who loads the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from hotplate.clock import Clock
from hotplate.codec import ABSENT_ROW, FLAGS_AT, stamp_of
from hotplate.contracts import Found, SharedRows, Tier
from hotplate.core.request import Reading, Want
from hotplate.core.steps import CallStep, LoadStep, PauseStep, Steps
from hotplate.invalidation.local import Domain
from hotplate.keys import Key
from hotplate.tiers.memory import MemoryTier

__all__ = ["Sharing"]

_PAUSE_S: Final = 0.002
_PAUSE_MAX_S: Final = 0.02

Load = Callable[[dict[Key, Want], dict[Key, bytes]], Generator[LoadStep, Any, None]]


class Sharing:
    """The part of the algorithm that deals with the other processes.

    Args:
        memory: where rows are kept that the shared tier has.
        domain: says which keys can still be looked up.
        clock: the cache's.
        load: reads keys from the source into a mapping of rows.
    """

    def __init__(self, memory: MemoryTier, domain: Domain, clock: Clock, load: Load) -> None:
        self._memory = memory
        self._domain = domain
        self._clock = clock
        self._load = load

    def take(self, shared: SharedRows, reading: Reading) -> Steps[bool]:
        """Take what other processes loaded, before anybody is told that it is being loaded.

        What is not there is noted in `reading.first`, so that `ask` need not look again.

        Args:
            shared: the shared tier.
            reading: the request; what it misses is answered in it as far as that goes.

        Returns:
            Whether that was all, and nothing in the answer has been judged before now.
        """
        wanted = missing = reading.missing
        for want in reading.wants:
            if not _is_shareable(want, reading):
                wanted = {key: one for key, one in missing.items() if _is_shareable(one, reading)}
                if not wanted:
                    return False
                break
        versions = self._memory.versions(wanted)
        asked = [(want.view, key) for key, want in wanted.items()]
        if reading.is_async:
            found = yield CallStep(partial(shared.look, asked))
        else:  # a step out of here and back costs more than some of what is done here
            found = shared.look(asked)
        taken, _, _ = self._judge(reading, wanted, found, versions)
        was_new = not reading.answer_of
        reading.answer_of.update(taken)
        reading.origins.update(dict.fromkeys(taken, Tier.SHARED))
        if len(taken) == len(missing):
            reading.missing = {}
            now_ns = reading.now_ns
            return was_new and all(want.bound.lease.until_ns >= now_ns for want in reading.wants)
        reading.missing = {key: want for key, want in missing.items() if key not in taken}
        reading.first = {
            key: (one, version)
            for key, one, version in zip(wanted, found, versions, strict=True)
            if key not in taken
        }
        return False

    def ask(
        self,
        shared: SharedRows,
        reading: Reading,
        to_load: dict[Key, Want],
        rows: dict[Key, bytes],
        tiers: dict[Key, Tier],
    ) -> Steps[None]:
        """Take rows that other processes loaded, load what none of them has or is loading.

        Args:
            shared: the shared tier.
            reading: the request.
            to_load: what it wants.
            rows: where the rows are put.
            tiers: where it is put which of them came from the shared tier.
        """
        waiting = {key: want for key, want in to_load.items() if _is_shareable(want, reading)}
        to_ask: dict[Key, Want] = {}
        if len(waiting) < len(to_load):
            to_ask = {key: want for key, want in to_load.items() if key not in waiting}
        give_up_s = time.monotonic() + 2 * shared.lease_s  # time for one holder to die
        pause_s = _PAUSE_S
        while waiting or to_ask:
            slots: dict[Key, Any] = {}
            if waiting:
                first, reading.first = reading.first, {}
                if waiting.keys() <= first.keys():  # seen just now
                    found = [first[key][0] for key in waiting]
                    versions = [first[key][1] for key in waiting]
                else:
                    versions = self._memory.versions(waiting)
                    found = yield CallStep(
                        partial(shared.look, [(want.view, key) for key, want in waiting.items()])
                    )
                taken, slots, to_claim = self._judge(reading, waiting, found, versions)
                rows.update(taken)
                tiers.update(dict.fromkeys(taken, Tier.SHARED))
                if len(taken) == len(waiting) and not to_ask:
                    return
                busy = {
                    key: want
                    for (key, want), one in zip(waiting.items(), found, strict=True)
                    if one.is_busy
                }
                if to_claim:
                    claims = yield CallStep(partial(shared.claim, [slots[k] for k in to_claim]))
                    for key, one in zip(to_claim, claims, strict=True):
                        if one.is_busy:
                            busy[key] = waiting[key]
                        if one.slot is None:
                            del slots[key]
                        else:
                            slots[key] = one.slot
                to_ask |= {
                    key: want
                    for key, want in waiting.items()
                    if key not in taken and key not in busy
                }
                waiting = busy
            if to_ask:
                yield from self._load_for_all(shared, to_ask, slots, rows)
                to_ask = {}
            elif waiting:
                yield PauseStep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
            if waiting and (time.monotonic() > give_up_s or not shared.is_usable):
                to_ask, waiting = waiting, {}  # whoever loads it takes too long

    def _judge(
        self,
        reading: Reading,
        wanted: Mapping[Key, Want],
        found: Sequence[Found],
        versions: Sequence[int],
    ) -> tuple[dict[Key, bytes], dict[Key, Any], list[Key]]:
        """Keep the rows that are fresh enough, with the age they have.

        Returns:
            These rows; the slots of the others; and which of those are to be claimed before the
            source is asked. The entry that a refresh replaces stays there for the others.
        """
        taken: dict[Key, bytes] = {}
        slots: dict[Key, Any] = {}
        to_claim: list[Key] = []
        items = []
        now_ns = reading.now_ns = self._clock.now_ns()
        for (key, want), one, version in zip(wanted.items(), found, versions, strict=True):
            row = one.row
            if row is not None:
                bound = want.bound
                age_ns = now_ns - int.from_bytes(row[:8], "big")  # `stamp_of`
                is_good = age_ns <= bound.surely_fresh_ns and not row[FLAGS_AT] & ABSENT_ROW
                if not is_good and age_ns > bound.expiry_ns(row):
                    row = None
                elif is_good or not (reading.is_refresh and bound.is_refresh_due(row, age_ns)):
                    taken[key] = row
                    want.counters.hits_shared += 1
                    items.append((key, row, version))
                    continue
            if one.slot is not None:
                slots[key] = one.slot
                if row is None:
                    to_claim.append(key)
        if items:
            self._memory.fill(items, self._domain.is_current)
        return taken, slots, to_claim

    def _load_for_all(
        self,
        shared: SharedRows,
        to_ask: dict[Key, Want],
        slots: dict[Key, Any],
        rows: dict[Key, bytes],
    ) -> Steps[None]:
        """Load keys, and put into the shared tier those that this process was to load."""
        try:
            yield from self._load(to_ask, rows)
        except Exception:
            if slots:
                yield CallStep(partial(shared.release, list(slots.values())))
            raise
        now_ns = self._clock.now_ns()
        items = [
            (slot, rows[key], life_ns)
            for key, slot in slots.items()
            if (life_ns := to_ask[key].bound.expiry_ns(rows[key]) - now_ns + stamp_of(rows[key]))
            > 0
        ]
        if items:
            yield CallStep(partial(shared.fill, items))


def _is_shareable(want: Want, reading: Reading) -> bool:
    bound = want.bound
    if not (bound.is_cached and want.view.is_shareable):
        return False
    return reading.now_ns <= bound.lease.until_ns or bound.lease.is_valid(reading.now_ns)
