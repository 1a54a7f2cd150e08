"""Take entries out of the shared tier little by little, so that the source bears what follows.

To forget a group at once costs nothing (`invalidate`: its entries become those of an earlier
generation), but every process then reads the source for every row it needs. A purge spreads that
over time. What it removes is told to the processes that listen, so that they forget it at the same
pace; a row that is in a process's memory but no longer in the shared tier keeps its ttl.

*Pace.* A removed entry costs the source at most one read: the first process that misses it takes
the lease to load it, the others wait for that one. Entries that nobody would serve any more (of
another schema, of an earlier generation) cost none. So the bound on extra misses is a bound on the
removal of live entries, and holds for every window of a second.

*Order.* A page of keys is walked to its end before the cursor moves on, and the cursor is what is
kept on disk: a purge that was stopped repeats a part of a page at most. A node that was restarted,
and a cluster that was rearranged, are walked anew.

Never touched: other projects, other keys, and the generations themselves.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hotplate.errors import CommandRefused, ConfigError, ServerError
from hotplate.keys import EntityShape
from hotplate.operations.cursors import CursorFile, NodeCursor, Position
from hotplate.operations.scan import COUNT, Page, connect, pages, size_of
from hotplate.pace import Pace
from hotplate.servers.pool import Command, Pool
from hotplate.servers.topology import Node, Topology
from hotplate.serving.coherence import server_of
from hotplate.serving.runtime import Runtime
from hotplate.tiers.entries import (
    BODY_AT,
    EVERY_VIEW,
    HEAD,
    LEASE,
    REST,
    VERSION,
    EntryName,
    fingerprint_of,
    generations_of,
    prefix_of,
    project_prefix,
    read_name,
)

__all__ = ["Limits", "Progress", "Purge"]

_TIMEOUT_S: Final = 2.0
_SAVE_EVERY_S: Final = 1.0
_WAIT_S: Final = 10.0
_POLL_S: Final = 0.02
_PASSES_MAX: Final = 5


@dataclass(frozen=True)
class Limits:
    """How fast a purge goes.

    Attributes:
        rate: entries removed in a second.
        batch: entries removed at once.
        max_misses: extra reads of the source that may follow in a second.
    """

    rate: int = 10_000
    batch: int = 10  # about 15 us of the server's time, during which nobody else is answered
    max_misses: int = 200

    def __post_init__(self) -> None:
        if min(self.rate, self.batch, self.max_misses) < 1:
            raise ConfigError("rate, batch and max_misses of a purge must be at least 1")


@dataclass(frozen=True)
class Progress:
    """How far a purge is.

    Attributes:
        removed: entries removed, those before it was resumed included.
        live: those of this run that somebody may miss.
        done: share of the keys that have been looked at, 0 to 1; None where it cannot be seen.
        rate_s: entries removed a second, in this run.
        remaining_s: how long it will take at this pace; None where it cannot be seen.
        is_over: whether nothing is left.
    """

    removed: int
    live: int
    done: float | None
    rate_s: float
    remaining_s: float | None
    is_over: bool = False


class Purge:
    """One purge of a project's shared tier.

    Args:
        runtime: the cache's.
        tables: every feature view of the project.
        chosen: those whose entries are to be removed; None for all there are.
        position: where to begin; a selection and nothing else for the beginning.
        limits: how fast.
        file: where it keeps its position.

    Raises:
        ConfigError: the deployment has no shared tier.
    """

    def __init__(
        self,
        runtime: Runtime,
        tables: Sequence[Any],
        chosen: Sequence[Any] | None,
        position: Position,
        limits: Limits,
        file: CursorFile,
    ) -> None:
        server = server_of(runtime.settings.shared)
        shared = runtime.shared()
        if server is None or shared is None:
            raise ConfigError("there is no shared tier to purge: online_store.shared names none")
        self._runtime = runtime
        self._server = server
        self._position = position
        self._limits = limits
        self._file = file
        self._pool = Pool(server, _TIMEOUT_S)
        self._shared = shared
        self._prefix = project_prefix(runtime.project)
        self._home = generations_of(runtime.project)
        self._current = {runtime.identity(table).version: table for table in tables}
        self._view_of: dict[str, str] = {
            version: table.name for table in tables for version in runtime.every_version(table)
        }
        self._wanted = None if chosen is None else self._prefixes(chosen)
        self._fingerprints: dict[tuple[str, EntityShape], bytes] = {}
        self._rate, self._misses = Pace(limits.rate), Pace(limits.max_misses)
        self._live = 0
        self._removed_before = position.removed
        self._began_s = self._saved_s = time.monotonic()
        self._sizes: dict[str, int | None] = {}
        self._pages_before = 0

    def _prefixes(self, tables: Sequence[Any]) -> tuple[bytes, ...]:
        project = self._runtime.project
        versions = {name for table in tables for name in self._runtime.every_version(table)}
        return tuple(prefix_of(project, version) for version in sorted(versions))

    # -- walking --------------------------------------------------------------------------------

    def run(self) -> Iterator[Progress]:
        """Remove, page by page; ends when nothing is left, keeps its position when stopped.

        Raises:
            ServerError: the server does not answer, lacks a right, or does not take what is
                announced; the position is kept.
        """
        self._file.save(self._position)
        self._runtime.begin_publishing()
        is_over = False
        try:
            for _ in range(_PASSES_MAX):
                topology = self._server.topology()
                self._begin(topology)
                for node in topology.nodes:
                    for _ in self._walk(node):
                        self._save_now_and_then()
                        yield self._progress(topology)
                if _shown(self._server.topology()) == self._position.topology:
                    is_over = True
                    break
            if not is_over:
                raise ServerError("the cluster is being rearranged: try again when that is over")
            yield self._progress(topology, is_over=True)
        finally:
            if is_over:
                self._file.remove()
            else:
                self._file.save(self._position)
            self._pool.drop()

    def _begin(self, topology: Topology) -> None:
        position, shown = self._position, _shown(topology)
        if position.topology != shown:  # keys may have moved to where the walk has been
            position.topology, position.nodes = shown, {}
        for node in topology.nodes:
            wire = connect(self._server, node)
            try:
                life = wire.run_id().decode()
                self._sizes[str(node)] = size_of(wire)
            finally:
                wire.close()
            known = position.nodes.get(str(node))
            if known is None or known.run_id != life:
                position.nodes[str(node)] = NodeCursor(life)
        self._pages_before = self._pages()

    def _walk(self, node: Node) -> Iterator[None]:
        at = self._position.nodes[str(node)]
        if at.is_done:
            return
        wire = connect(self._server, node)
        try:
            for page in pages(wire, self._scanned(), at.cursor):
                yield from self._remove(page)
                at.cursor, at.is_done = page.cursor, page.cursor == 0
                at.pages += 1
                yield
        finally:
            wire.close()

    def _scanned(self) -> bytes:
        """The longest prefix that all wanted keys have in common."""
        if self._wanted is not None and len(self._wanted) == 1:
            return self._wanted[0]
        return self._prefix

    # -- one page -------------------------------------------------------------------------------

    def _remove(self, page: Page) -> Iterator[None]:
        keys = [key for key in page.keys if self._wanted is None or key.startswith(self._wanted)]
        for start in range(0, len(keys), self._limits.batch):
            live, dead = self._judge(keys[start : start + self._limits.batch])
            yield from self._take_out(dead, [self._rate], {})
            yield from self._take_out(list(live), [self._rate, self._misses], live)

    def _judge(self, keys: Sequence[bytes]) -> tuple[dict[bytes, EntryName | None], list[bytes]]:
        """Which of some keys somebody may miss, and which nobody would serve."""
        names = {key: read_name(key, self._prefix) for key in keys}
        views = sorted({self._view(name) for name in names.values() if name is not None})
        fields = [EVERY_VIEW, *(view.encode() for view in views)]
        commands: list[Command] = [(self._home, ("HMGET", self._home, *fields))]
        commands += [(key, ("GETRANGE", key, 0, BODY_AT - 1)) for key in keys]
        known, *heads = self._ask(commands)
        generations = dict(zip(views, known[1:], strict=True))
        live: dict[bytes, EntryName | None] = {}
        dead = []
        for key, head in zip(keys, heads, strict=True):
            if not head:  # it went by itself
                continue
            name = names[key]
            view = "" if name is None else self._view(name)
            generation = (known[0] or b"") + (generations.get(view) or b"")
            if name is None or self._is_outdated(name, head, generation):
                dead.append(key)
            elif not self._position.selection.is_outdated:
                live[key] = name
        return live, dead

    def _view(self, name: EntryName) -> str:
        return self._view_of.get(name.version, name.version)

    def _is_outdated(self, name: EntryName, head: bytes, generation: bytes) -> bool:
        """Whether nobody with the present registry would serve an entry."""
        if name.version not in self._view_of:
            return True
        if head[:1] == LEASE:
            return False
        if len(head) < BODY_AT or head[0] != VERSION:
            return True
        fingerprint, made_in, _, _ = REST.unpack_from(head, HEAD.size)
        table = self._current.get(name.version)
        if table is None:  # an older version of a view, which requests may pin
            return bool(made_in != generation)
        place = (name.version, name.shape)
        current = self._fingerprints.get(place)
        if current is None:
            identity = self._runtime.identity(table, name.shape)
            current = self._fingerprints[place] = fingerprint_of(identity)
        return bool(made_in != generation or fingerprint != current)

    def _take_out(
        self,
        keys: Sequence[bytes],
        paces: Sequence[Pace],
        names: Mapping[bytes, EntryName | None],
    ) -> Iterator[None]:
        step = min(self._limits.batch, *(pace.step for pace in paces))
        for start in range(0, len(keys), step):
            part = keys[start : start + step]
            for pace in paces:
                pace.take(len(part))
            try:
                removed = self._pool.unlink(part)
                self._position.removed += removed
                self._runtime.purged += removed
                self._pool.unlink(self._shared.ties_of(part))
            finally:  # also when stopped: what is gone is not found, and not told, another time
                self._tell([name for key in part if (name := names.get(key)) is not None])
            yield

    def _tell(self, names: Sequence[EntryName]) -> None:
        """Let this process and the others forget what was removed."""
        self._live += len(names)
        by_view: dict[str, list[tuple[EntityShape, tuple[Any, ...]]]] = {}
        for name in names:
            by_view.setdefault(self._view(name), []).append((name.shape, name.values))
        runtime = self._runtime
        for view, shaped in by_view.items():
            dropped = runtime.domain.invalidate_entities(runtime.project, view, shaped)
            runtime.invalidations.add("asked", dropped)
            runtime.coherence.announce(view, shaped)
        self._await_announcer()

    def _await_announcer(self) -> None:
        """What waits too long to be sent is shortened to whole views, which is no pace at all."""
        parts = self._runtime.coherence.parts()
        deadline = time.monotonic() + _WAIT_S
        while parts is not None and parts[1].pending:
            if time.monotonic() >= deadline:
                raise ServerError("the server does not take what is announced")
            time.sleep(_POLL_S)

    def _ask(self, commands: Sequence[Command]) -> list[Any]:
        replies = self._pool.ask(commands)
        for reply in replies:
            if isinstance(reply, CommandRefused) and reply.code != "WRONGTYPE":
                raise reply
        return [None if isinstance(reply, CommandRefused) else reply for reply in replies]

    # -- how far --------------------------------------------------------------------------------

    def _save_now_and_then(self) -> None:
        now_s = time.monotonic()
        if now_s - self._saved_s >= _SAVE_EVERY_S:
            self._saved_s = now_s
            self._file.save(self._position)

    def _pages(self) -> int:
        return sum(node.pages for node in self._position.nodes.values())

    def _progress(self, topology: Topology, *, is_over: bool = False) -> Progress:
        removed = self._position.removed
        spent_s = max(1e-6, time.monotonic() - self._began_s)
        done = 1.0 if is_over else self._share(topology)
        remaining_s = None
        seen = self._pages() - self._pages_before
        if done is not None and done > 0 and seen > 0:
            whole = self._pages() / done
            remaining_s = (whole - self._pages()) * spent_s / seen
        rate_s = (removed - self._removed_before) / spent_s
        return Progress(removed, self._live, done, rate_s, remaining_s, is_over)

    def _share(self, topology: Topology) -> float | None:
        """How much of all keys has been looked at: a page is `COUNT` places of the table."""
        total = seen = 0.0
        for node in map(str, topology.nodes):
            size = self._sizes.get(node)
            if size is None:
                return None
            at = self._position.nodes[node]
            total += max(1, size)
            seen += size if at.is_done else min(0.99 * size, at.pages * COUNT)
        return min(0.999, seen / total)


def _shown(topology: Topology) -> str:
    """What tells one arrangement of a deployment from another."""
    slots = (f"{first}-{last}={node}" for first, last, node in topology.slots)
    return ",".join(slots) or ",".join(map(str, topology.nodes))
