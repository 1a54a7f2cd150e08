"""Shadow checks: some of what is served from memory is compared with the source.

A request only puts what it asked for into a bounded queue. A thread takes a row that memory would
serve now, reads the source, and looks whether memory would still serve that very row. Only then do
the two have to agree; a row that was forgotten meanwhile is *overtaken* and says nothing. Where
they do not agree:

- under `coherence: event`, a message may be on its way: after a moment the row is looked at again,
  and if it is served still it *differs*;
- under `coherence: ttl`, a source whose event time is later, or that has or lacks the entity where
  the row says otherwise, may have been written since: the row is *stale*, which its policy allows
  and which says nothing of it. What the event time does not explain *differs*. Rows whose event
  time is that of their load (of loaders that name no column for it, and of windows) are compared
  by their values, and are stale where these do not agree.

Rows that differ should not be. Where the share of them is surely above a limit, their group is
served from the source from then on, until somebody lets it back (`Hotplate.admit`) or the process
ends.
"""

from __future__ import annotations

import logging
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hotplate.codec import PREFIX_BYTES, is_absent, stamp_of
from hotplate.contracts import LoadRequest, View
from hotplate.core.engine import Engine
from hotplate.core.request import Bound, Want
from hotplate.forks import restart_in_children
from hotplate.intervals import wilson_interval
from hotplate.keys import Key
from hotplate.pace import Pace
from hotplate.sampling import Share
from hotplate.seldom import Seldom
from hotplate.stats import GroupCounters

__all__ = ["Shadow", "ShadowSettings"]

_WAITING_MOST: Final = 1_000
_AT_ONCE: Final = 50
_AGAIN_S: Final = 0.5  # longer than a lease of the event channel lasts
_WAKES_S: Final = 0.2
_log = logging.getLogger("hotplate.shadow")


@dataclass(frozen=True)
class ShadowSettings:
    """How much is compared, and what follows.

    Attributes:
        share: of the requests, of each of which one row a view is compared.
        rate: rows a second at the most, since each is a read of the source.
        limit: share of rows that may differ.
        least: rows that are compared before that is judged.
    """

    share: float
    rate: int
    limit: float
    least: int


@dataclass(eq=False)
class _Sample:
    """A row that was served: whose, and when to look at it again."""

    view: View
    table: Any
    bound: Bound
    counters: GroupCounters
    key: Key
    row: bytes = b""
    again_s: float = 0.0


class Shadow:
    """Compares some of what is served with the source.

    Args:
        engine: whose memory and source.
        settings: how much.
        exclude: takes a group out of the cache: (group, why).
        says_when: whether the event time of a feature view's rows says when they were written.
        clock, sleep: in seconds, for tests.
    """

    def __init__(
        self,
        engine: Engine,
        settings: ShadowSettings,
        exclude: Callable[[str, str], None],
        says_when: Callable[[Any], bool] = lambda table: True,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._engine, self.settings, self._exclude = engine, settings, exclude
        self._says_when = says_when
        self._clock, self._sleep = clock, sleep
        self._before: dict[str, tuple[int, int]] = {}  # compared and differed, not to be judged
        self._share = Share(settings.share)
        self._chance = random.Random()
        self._seldom = Seldom()
        self._start_clean()
        restart_in_children(self)

    def _start_clean(self) -> None:
        self._pace = Pace(self.settings.rate, self._clock, self._sleep)
        self._waiting: deque[_Sample] = deque(maxlen=_WAITING_MOST)
        self._doubted: deque[_Sample] = deque(maxlen=_WAITING_MOST)
        self._lock = threading.Lock()
        self._checking = threading.Lock()
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def restart_after_fork(self) -> None:
        """Leave what waits to the parent."""
        self._start_clean()

    # -- on the way of a request ------------------------------------------------------------------

    def gap(self) -> int:
        """As `Share.gap`."""
        return self._share.gap()

    def note_some(self, wants: Sequence[Want]) -> None:
        """Take one of so many requests."""
        if weight := self._share.take():
            self.note(wants, weight)

    def note(self, wants: Sequence[Want], weight: int) -> None:
        """Take a row of each view of a request."""
        for want in wants:
            if want.keys and want.bound.is_cached:
                key = self._chance.choice(want.keys)
                self._waiting.append(_Sample(want.view, want.table, want.bound, want.counters, key))
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None or self._ends.is_set():
                return
            thread = threading.Thread(
                target=_work, args=(weakref.ref(self), self._ends), name="hotplate-shadow"
            )
            thread.daemon = True
            try:
                thread.start()
            except RuntimeError:  # no thread to be had: then nothing is compared
                return
            self._thread = thread

    # -- on the thread ----------------------------------------------------------------------------

    def check(self) -> None:
        """Compare all that waits; rows that are doubted only when it is time."""
        while self.check_some():
            pass

    def check_some(self) -> bool:
        """Compare a part of what waits, what is doubted first; returns whether more waits."""
        with self._checking:
            while self._doubted and self._doubted[0].again_s <= self._clock():
                self._compare([self._doubted.popleft()], is_last=True)
            count = min(_AT_ONCE, len(self._waiting), self.settings.rate)
            samples = [self._waiting.popleft() for _ in range(count)]
            if samples:
                self._compare(samples, is_last=False)
            return bool(self._waiting)

    def _compare(self, samples: Sequence[_Sample], *, is_last: bool) -> None:
        held = []
        for sample in samples:
            row = self._served(sample)
            if row is not None and (not sample.row or row == sample.row):
                sample.row = row
                held.append(sample)
            elif is_last:
                sample.counters.shadow_overtaken += 1
        if not held:
            return
        self._pace.take(len(held))
        for sample, body in self._at_source(held):
            if self._served(sample) != sample.row:
                sample.counters.shadow_overtaken += 1
            else:
                self._judge(sample, body, is_last=is_last)

    def _served(self, sample: _Sample) -> bytes | None:
        """The row that memory would serve now."""
        bound, now_ns = sample.bound, self._engine.clock.now_ns()
        row = self._engine.memory.peek(sample.key)
        if row is None or not bound.lease.is_whole(now_ns):
            return None
        return row if now_ns - stamp_of(row) <= bound.expiry_ns(row) else None

    def _at_source(self, samples: Iterable[_Sample]) -> list[tuple[_Sample, bytes]]:
        by_view: dict[View, list[_Sample]] = {}
        for sample in samples:
            by_view.setdefault(sample.view, []).append(sample)
        found: list[tuple[_Sample, bytes]] = []
        for view, some in by_view.items():
            # a view by itself: one whose source fails says nothing of the others
            keys = [sample.key for sample in some]
            request = LoadRequest(view, some[0].table, keys, is_check=True)
            try:
                (bodies,) = self._engine.source.load([request])
                if isinstance(bodies, Exception):
                    raise bodies
            except Exception as error:  # noqa: BLE001 - whatever a source raises, nobody waits for it
                some[0].counters.shadow_errors += 1
                if self._seldom.is_time():
                    _log.warning("shadow checks: the source fails: %s", type(error).__name__)
                continue
            found += zip(some, bodies, strict=True)
        return found

    def _judge(self, sample: _Sample, body: bytes, *, is_last: bool) -> None:
        counters, row = sample.counters, sample.row
        says_when = self._says_when(sample.table)
        is_equal = row[PREFIX_BYTES:] == body or (not says_when and _same_values(sample, body))
        if is_equal and stamp_of(row) <= self._engine.clock.now_ns():
            counters.shadow_equal += 1
        elif sample.bound.policy.is_event and not is_last:
            sample.again_s = self._clock() + _AGAIN_S
            self._doubted.append(sample)
        elif not sample.bound.policy.is_event and (not says_when or _is_older(sample, body)):
            counters.shadow_stale += 1
        else:
            counters.shadow_differed += 1
            self._say(sample, body)
            self._weigh(counters)

    def _say(self, sample: _Sample, body: bytes) -> None:
        view = sample.view
        source = b"\0" * PREFIX_BYTES + body
        if is_absent(sample.row) or is_absent(source):
            what = "whether there is the entity at all"
        else:
            decode = view.layout.decode
            pairs = zip(decode(sample.row), decode(source), strict=True)
            names = [column.name for column in view.layout.columns]
            apart = [name for name, (a, b) in zip(names, pairs, strict=True) if a != b]
            what = ", ".join(apart) or "its event time"
        _log.error(
            "shadow checks: feature view %s: a row in memory differs from the source in %s, and "
            "nothing says that it was written since",
            view.identity.view,
            what,
        )

    def _weigh(self, counters: GroupCounters) -> None:
        """Take a group out of the cache where too many of its rows surely differ."""
        found = counters.snapshot()
        compared, differed = self._before.get(counters.name, (0, 0))
        compared, differed = found.shadow_compared - compared, found.shadow_differed - differed
        if compared < self.settings.least:
            return
        low, _ = wilson_interval(differed, compared)
        if low > self.settings.limit:
            self._exclude(
                counters.name,
                f"shadow checks: {differed:,} of {compared:,} rows differed from the source, and "
                f"more than {self.settings.limit:.3%} surely do",
            )

    def begin_anew(self, counters: GroupCounters) -> None:
        """Judge a group by what comes from now on."""
        found = counters.snapshot()
        self._before[counters.name] = found.shadow_compared, found.shadow_differed

    def close(self) -> None:
        """End the thread; a later read starts another."""
        self._ends.set()
        self._thread, self._ends = None, threading.Event()


def _same_values(sample: _Sample, body: bytes) -> bool:
    """Whether two rows say the same of every feature, whatever their event times."""
    source = b"\0" * PREFIX_BYTES + body
    if is_absent(sample.row) or is_absent(source):
        return is_absent(sample.row) == is_absent(source)
    serialized = sample.view.layout.serialized
    return serialized(sample.row) == serialized(source)


def _is_older(sample: _Sample, body: bytes) -> bool:
    """Whether the source was written after the row was read, by what it says of itself."""
    source = b"\0" * PREFIX_BYTES + body
    if is_absent(sample.row) != is_absent(source):
        return True
    event_us = sample.view.layout.event_us
    mine, theirs = event_us(sample.row), event_us(source)
    return mine is not None and theirs is not None and theirs > mine


def _work(shadow: weakref.ref[Shadow], ends: threading.Event) -> None:
    while not ends.wait(_WAKES_S):
        found = shadow()
        if found is None:
            return
        try:
            while found.check_some() and not ends.is_set():
                pass
        except Exception as error:  # noqa: BLE001 - the border of the thread
            if found._seldom.is_time():
                _log.warning("shadow checks: %s", type(error).__name__)
        del found
