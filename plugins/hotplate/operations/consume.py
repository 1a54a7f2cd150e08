"""Follows a Redis stream with a consumer group, and brings its entries into the event logs.

**At least once in.** An entry belongs to the group until it is acknowledged, whoever dies. A
consumer first takes what it was handed before, then what others were handed `claim_after_s` ago and
have not finished, then what is new; and after every trouble it begins again at the first.

**Once in effect.** See `hotplate.operations.delivery`: an entry is appended and acknowledged in one
step, or leaves a mark beside its log.

**When it arrived.** What an entry says itself, or else the moment in its id, which the server
stamped: the same at every delivery, so late stays late and in time stays in time, however long the
consumer was away. Logs are folded as of where the stream has been read to, not as of the clock: a
duplicate that was added to the stream in time finds its first copy still there as a record.

**Nothing is lost silently.** What is no event goes to a stream of dead letters. What is late, from
the future or cannot be kept is counted by reason. What was taken out of the stream before it was
read, is counted and said.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from hotplate.errors import CommandRefused, ConfigError, HotplateError, ServerError
from hotplate.operations.consume_settings import Consumed, ConsumerSettings
from hotplate.operations.delivery import DeadLetters, Delivered, Delivery, OneStep, as_numbers
from hotplate.operations.delivery_apart import FourSteps
from hotplate.operations.stream_entries import Entry, EntryReader
from hotplate.operations.stream_group import GroupMissing, Lag, StreamGroup, lacking
from hotplate.seldom import Seldom
from hotplate.servers.redis import RedisServer
from hotplate.servers.topology import is_beside
from hotplate.serving.runtime import Runtime

__all__ = ["Consumed", "Consumer", "ConsumerSettings"]

_log = logging.getLogger("hotplate.consumer")
_FIRST: Final = b"0-0"
_LOOK_S: Final = 2.0
_VIEW_S: Final = 10.0
_RATE_S: Final = 5.0
_PAUSE_S: Final = 0.1
_PAUSE_MAX_S: Final = 5.0
_SELDOM: Final = ("unreadable", "unknown", "removed", "registry")
_LOGIN: Final = ("WRONGPASS", "NOAUTH", "invalid username-password", "invalid password")


class Consumer:
    """One consumer of a stream. Iterate over it to let it work; for one thread at a time.

        for so_far in hotplate.of(store).consume("card_events", "payments"):
            print(so_far.accepted)

    Each step is a batch, or a wait for one. An iteration that is left off, and a process that is
    killed, leave what they had in hand to the next one.

    Args:
        runtime: of the cached store.
        find_view: looks the event view up, as it is now in the registry.
        stream: the stream's key.
        settings: how.

    Raises:
        ConfigError: it cannot work with this deployment or this event view.
    """

    def __init__(
        self,
        runtime: Runtime,
        find_view: Callable[[], Any],
        stream: str,
        settings: ConsumerSettings,
    ) -> None:
        self._runtime = runtime
        self._find_view = find_view
        self._settings = settings
        self._stop = threading.Event()
        place = runtime.event_logs.place
        server = place.server if place is not None else RedisServer("")
        if settings.connection_string is not None:
            server = RedisServer(
                settings.connection_string, settings.redis_type, settings.sentinel_master
            )
        timeout_s = settings.block_s + (1.0 if place is None else place.timeout_s)
        name = settings.consumer or _own_name()
        self._group = StreamGroup(server, stream, settings.group, name, timeout_s)
        dead = _dead(settings, stream, server)
        letters = DeadLetters(dead, settings.dead_max, has_dropped=settings.keep_dropped)
        self._delivery = _delivery_of(runtime, self._group, letters)
        self._view: Any = None
        self._viewed_s = float("-inf")
        self._seldom = {name: Seldom() for name in _SELDOM}
        self._look_up()
        self._reset()

    def _reset(self) -> None:
        self._is_ready = False
        self._has_own = True
        self._claim_after, self._claim_due_s = _FIRST, 0.0
        self._last_done: bytes | None = None
        self._pause_s = _PAUSE_S
        self._totals = Delivered()
        self._read = self._claimed = 0
        self._unknown: Counter[str] = Counter()
        self._moments: deque[tuple[float, int]] = deque()
        self._lag: Lag | None = None
        self._looked_s = float("-inf")

    @property
    def stream(self) -> str:
        """The stream's key."""
        return self._group.stream

    def stop(self) -> None:
        """End the iteration after the batch in hand; for other threads and for signals."""
        self._stop.set()

    def __iter__(self) -> Iterator[Consumed]:
        """Follow the stream until it is stopped.

        Yields:
            What has been done so far.

        Raises:
            ConfigError: a right is missing, a server evicts, or a key holds something else.
            HotplateError: the event view is not in the registry any more.
        """
        self._reset()
        try:
            while not self._stop.is_set():
                trouble = None
                try:
                    if not self._work() and self._settings.once:
                        break
                    self._pause_s = _PAUSE_S
                except GroupMissing:
                    trouble = self._recreate()
                except CommandRefused:
                    raise
                except ServerError as error:
                    trouble = self._wait_out(error)
                yield self.so_far(trouble)
            yield self.so_far()
        finally:
            self._stop.clear()  # not before: it may be told to stop before it has begun
            self._leave()

    # -- one step -------------------------------------------------------------------------------

    def _work(self) -> bool:
        """Bring in a batch; whether there was one."""
        if not self._is_ready:
            self._prepare()
        entries = self._next()
        if entries:
            self._look_up()
            step = self._delivery.step
            for at in range(0, len(entries), step):
                self._bring_in(entries[at : at + step])
        if self._settings.once or time.monotonic() - self._looked_s >= _LOOK_S:
            self._look()
        return bool(entries)

    def _prepare(self) -> None:
        """Make sure of the server, the group and the rights."""
        self._runtime.event_logs.check_place()
        start = self._settings.start
        if self._group.create(start.encode()):
            _log.info("stream %r: group made, begins at %s", self.stream, start)
        self._look()  # what was taken out unread cannot be seen any more once the rest is read
        missing = []
        for pool, command in self._delivery.trials(self._log):
            reply = pool.ask([command])[0]
            if isinstance(reply, CommandRefused) and (right := lacking(reply)) is not None:
                missing.append(right)
        if missing:
            raise ConfigError(
                f"stream {self.stream!r}: the user may not do what a consumer does: "
                f"{', '.join(dict.fromkeys(missing))}"
            )
        self._is_ready = True

    def _next(self) -> Sequence[Entry]:
        """What to bring in now: its own, then what others left, then what is new."""
        settings, group = self._settings, self._group
        entries: Sequence[Entry] = group.own(settings.batch) if self._has_own else ()
        self._has_own = bool(entries)
        while not entries and time.monotonic() >= self._claim_due_s:
            claimed = group.claim(settings.claim_after_s, self._claim_after, settings.batch)
            entries, self._claim_after = claimed.entries, claimed.next
            self._claimed += len(entries)
            self._note_gone(claimed.gone)
            self._totals.gone += claimed.gone
            if claimed.next == _FIRST:
                self._claim_due_s = time.monotonic() + settings.claim_after_s / 2
        if not entries:
            entries = group.fresh(settings.batch, None if settings.once else settings.block_s)
        self._read += len(entries)
        return entries

    def _bring_in(self, entries: Sequence[Entry]) -> None:
        readout = self._reader.read(entries)
        done = self._delivery.deliver(self._log, entries, readout)
        self._totals.add(done)
        newest = max((entry.id for entry in entries), key=as_numbers)
        self._last_done = max(newest, self._last_done or _FIRST, key=as_numbers)
        self._note_gone(done.gone)
        if readout.unknown:
            self._unknown.update(readout.unknown)
            if self._seldom["unknown"].is_time():
                names = ", ".join(map(repr, sorted(readout.unknown)[:10]))
                _log.warning(
                    "stream %r: columns that the view does not know: %s", self.stream, names
                )
        if readout.unreadable and self._seldom["unreadable"].is_time():
            why = next(iter(readout.unreadable.values()))
            _log.warning("stream %r: entries are no events, such as: %s", self.stream, why)

    def _note_gone(self, count: int) -> None:
        if count:
            _log.warning(
                "stream %r: %d entries were taken out of it before they were finished",
                self.stream,
                count,
            )

    def _look_up(self) -> None:
        """Take the event view as it is now: who adds a window may change where its log is."""
        now_s = time.monotonic()
        if self._view is not None and now_s - self._viewed_s < _VIEW_S:
            return
        self._viewed_s = now_s
        try:
            view = self._find_view()
        except KeyError as error:
            if self._view is None:
                raise
            raise HotplateError(f"stream {self.stream!r}: {error.args[0]} any more") from None
        except Exception as error:
            if self._view is None:
                raise
            if self._seldom["registry"].is_time():
                name = type(error).__name__
                _log.warning("the registry cannot be read; what it said last holds: %s", name)
            return
        if self._view is not None and view.tags == self._view.tags:
            return
        self._reader = EntryReader(view, refuse_unknown=self._settings.refuse_unknown)
        self._log = self._runtime.event_logs.log(view)
        if self._view is not None:
            _log.warning("event view %r was declared anew and is followed as it is now", view.name)
        self._view = view

    # -- trouble --------------------------------------------------------------------------------

    def _wait_out(self, error: ServerError) -> str:
        """Wait a little longer each time, then begin again with what was handed out before."""
        said = str(error)
        if any(word in said for word in _LOGIN):
            raise ConfigError(f"stream {self.stream!r}: {said}. Correct username and password.")
        _log.warning("stream %r: %s; trying again in %.1f s", self.stream, said, self._pause_s)
        self._stop.wait(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _PAUSE_MAX_S)
        self._has_own = True
        self._delivery.close()
        return said

    def _recreate(self) -> str:
        """The stream was flushed or the group destroyed: make it anew where nothing is left out.

        What was handed to others and not finished is handed out again only where it comes after
        what this consumer has done; the group that knew of it is gone.
        """
        start = self._settings.start.encode()
        try:
            if self._last_done is not None:
                newest = self._group.newest()
                is_same = as_numbers(newest) >= as_numbers(self._last_done)
                start = self._last_done if is_same else b"0"
            self._group.create(start)
        except CommandRefused:
            raise
        except ServerError as error:
            return self._wait_out(error)
        said = f"its group {self._settings.group!r} was gone; made again, begins after {start!r}"
        _log.warning("stream %r: %s", self.stream, said)
        self._has_own = True
        return said

    def _leave(self) -> None:
        if self._settings.consumer is None and self._is_ready:
            with suppress(HotplateError):  # a name that is left behind in the group does no harm
                self._group.leave()
        self._delivery.close()

    # -- looking --------------------------------------------------------------------------------

    def so_far(self, trouble: str | None = None) -> Consumed:
        """What has been done since the iteration began."""
        now_s = time.monotonic()
        self._moments.append((now_s, self._read))
        while len(self._moments) > 2 and now_s - self._moments[0][0] > _RATE_S:
            self._moments.popleft()
        began_s, before = self._moments[0]
        totals = self._totals
        return Consumed(
            self._read,
            totals.accepted,
            dict(totals.dropped),
            totals.unreadable,
            totals.letters,
            totals.gone,
            totals.elsewhere,
            self._claimed,
            dict(self._unknown),
            (self._read - before) / max(now_s - began_s, 1e-9),
            self._lag,
            trouble,
        )

    def _look(self) -> None:
        self._looked_s = time.monotonic()
        self._lag = self._group.lag()
        if self._lag is not None and self._lag.removed and self._seldom["removed"].is_time():
            _log.warning(
                "stream %r: at least %d entries were taken out of it before the group read them",
                self.stream,
                self._lag.removed,
            )


def _dead(settings: ConsumerSettings, stream: str, server: RedisServer) -> bytes:
    """The key of the dead letters; a cluster must keep it beside the stream."""
    if server.kind != "redis_cluster":
        return (settings.dead or f"{stream}:dead").encode()
    name = settings.dead
    if name is None:
        name = f"{stream}:dead"
        if not is_beside(stream.encode(), name.encode()):
            name = f"{{{stream}}}:dead"
    if not is_beside(stream.encode(), name.encode()):
        raise ConfigError(
            f"dead letters {name!r}: a cluster keeps them in another slot than the stream "
            f"{stream!r}. Give both the same part in braces, as in {{payments}}:dead."
        )
    return name.encode()


def _own_name() -> str:
    """A name that nobody else has: containers may share a host's name and their process ids."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


def _delivery_of(runtime: Runtime, group: StreamGroup, letters: DeadLetters) -> Delivery:
    """The way of delivery that the deployment allows.

    Raises:
        ConfigError: the event logs are in this process alone.
    """
    place = runtime.event_logs.place
    if place is None:
        raise ConfigError(
            "online_store.windows.in_process: the event logs are in this process alone and end "
            "with it, so nothing that is acknowledged would be safe. Name a Redis or Valkey server."
        )
    meeting, _ = runtime.meeting_place()
    is_one = place.server == group.server == meeting and group.server.kind != "redis_cluster"
    return (OneStep if is_one else FourSteps)(runtime, place, group, letters)
