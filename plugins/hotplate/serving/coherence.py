"""What processes tell each other through one cache: who listens, to what, and what is then done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from feast.infra.key_encoding_utils import serialize_entity_key_prefix

from hotplate.clock import Clock
from hotplate.contracts import Lease, View
from hotplate.invalidation import channel as channel_module
from hotplate.invalidation.announcer import Announcer
from hotplate.invalidation.channel import Channel
from hotplate.invalidation.local import Domain
from hotplate.invalidation.messages import Change, encode
from hotplate.keys import EntityShape, parse_stored_key
from hotplate.servers.redis import RedisServer
from hotplate.stats import ChannelStats, InvalidationCounters
from hotplate.tiers.shared import SharedTier

__all__ = ["Announcement", "Coherence", "server_of"]


class Announcement(NamedTuple):
    """What is said to other processes.

    Attributes:
        topic: where it is published.
        message: what is published.
    """

    topic: bytes
    message: bytes


class Coherence:
    """The event channel of one cache.

    Where the wrapped store is Redis, it is that store's own server, because that one sees every
    writer; otherwise the server under `online_store.shared`. Nothing is connected before an
    event-coherent view is read, or something is announced.

    Args:
        project: the Feast project.
        domain: the caches that forget together.
        clock: the cache's.
        server: says where processes meet and whether the server broadcasts what is written into
            the wrapped store; asked once. None where they cannot meet.
        shared: the shared tier, or None.
        counts: of invalidations.
        is_shared: whether the deployment names a server for it, so that explicit invalidations
            are listened for whatever the groups' policies.
    """

    def __init__(
        self,
        project: str,
        domain: Domain,
        clock: Clock,
        server: Callable[[], tuple[RedisServer | None, bool]],
        shared: Callable[[], SharedTier | None],
        counts: InvalidationCounters,
        *,
        is_shared: bool,
    ) -> None:
        self._counts = counts
        self._project = project
        self._topic = f"hotplate:changes:{{{project}}}"
        self._domain = domain
        self._clock = clock
        self._find_server = server
        self._shared = shared
        self._is_shared = is_shared
        self._is_listening = False
        self._parts: dict[str, tuple[Channel, Announcer] | None] = {}
        self._event_views: dict[View, EntityShape] = {}
        self.is_tracked = False

    @property
    def is_shared(self) -> bool:
        """Whether the deployment names a server on which processes meet."""
        return self._is_shared

    def parts(self) -> tuple[Channel, Announcer] | None:
        """The channel and the announcer; None where processes cannot meet."""
        if "made" not in self._parts:
            server, self.is_tracked = self._find_server()
            made = None
            if server is not None:
                topic = self._topic
                made = (Channel(server, topic, self, self._clock), Announcer(server, topic))
            # one pair for all threads, without a lock that a forked child could find held
            self._parts.setdefault("made", made)
        return self._parts["made"]

    def lease(self) -> Lease | None:
        """Under which event-coherent rows are served; None where there is no channel."""
        parts = self.parts()
        return None if parts is None else parts[0].lease

    # -- listening ------------------------------------------------------------------------------

    def note_view(self, view: View, *, is_event: bool) -> None:
        """A view is going to be read: listen for its changes, where anybody tells them."""
        if is_event:
            if view not in self._event_views:
                self._hear_of(view)
        elif self._is_shared and not self._is_listening:
            self._is_listening = True
            parts = self.parts()
            if parts is not None:
                parts[0].start()

    def hears(self, view: View) -> bool:
        """Whether changes of a view are listened for, whoever makes them."""
        return self._is_shared or view in self._event_views

    def _hear_of(self, view: View) -> None:
        self._event_views[view] = view.identity.shape
        parts = self.parts()
        if parts is None:
            return
        if self.is_tracked:
            parts[0].track([serialize_entity_key_prefix(list(view.identity.shape.join_keys))])
        else:
            parts[0].start()

    def hear_keys(self, keys: Sequence[bytes]) -> None:
        """Keys of the wrapped Redis store changed, whoever changed them."""
        suffix = self._project.encode()
        by_shape: dict[EntityShape, list[View]] = {}
        for view, shape in list(self._event_views.items()):
            by_shape.setdefault(shape, []).append(view)
        heard = [
            (view, parsed)
            for raw in keys
            if (parsed := parse_stored_key(raw, suffix)) is not None
            for view in by_shape.get(parsed[0], ())
        ]
        local = [view.key(values) for view, (_, values) in heard]
        dropped = self._domain.invalidate_keys(local)
        shared = self._shared()
        if shared is not None and heard:
            # the writer may not know that it is there; then what was read from it meanwhile
            by_version: dict[str, list[tuple[EntityShape, tuple[Any, ...]]]] = {}
            for view, entity in heard:
                by_version.setdefault(view.identity.version, []).append(entity)
            for version, entities in by_version.items():
                shared.forget_entities(version, entities)
            dropped += self._domain.invalidate_keys(local)
        if heard:
            self._counts.add("broadcast", dropped)

    def hear_change(self, change: Change) -> None:
        """Another process announced a change."""
        if change.is_owed:
            self._forget_shared(change)
        if change.view is None:
            dropped = self._domain.invalidate_all(self._project)
        elif change.shape is None:
            views = self._domain.views_named(self._project, change.view)
            dropped = self._domain.invalidate_views(views)
        else:
            shape = change.shape
            dropped = self._domain.invalidate_entities(
                self._project, change.view, ((shape, values) for values in change.entities)
            )
        self._counts.add("announced", dropped)

    def _forget_shared(self, change: Change) -> None:
        """Do in the shared tier what the writer could not."""
        shared = self._shared()
        if shared is None:
            return
        if change.view is None:
            shared.forget_all()
        elif change.shape is None:
            shared.forget_views([change.view])
        else:
            shape = change.shape
            known = self._domain.views_named(self._project, change.view)
            for version in {view.identity.version for view in known}:
                shared.forget_entities(version, [(shape, values) for values in change.entities])

    def hear_gap(self) -> None:
        """Anything may have changed: no event-coherent row is known to be current."""
        shared = self._shared()
        self._follow_primary(shared)
        parts = self.parts()
        is_first = parts is not None and parts[0].gaps == 1
        # writers may not know the shared tier, or not have reached it; a process that starts
        # believes what it finds there
        if shared is not None and (self.is_tracked or not is_first):
            shared.forget_views({view.identity.view for view in self._event_views})
        self._counts.add("gap", self._domain.invalidate_views(list(self._event_views)))

    def _follow_primary(self, shared: SharedTier | None) -> None:
        """A primary that was replaced may go on answering, and only sentinels know it.

        The channel watches them; what else is connected to it moves on with the channel.
        """
        parts = self.parts()
        if parts is not None and parts[0].is_watching:
            parts[1].reconnect()
            if shared is not None:
                shared.reconnect()

    # -- telling --------------------------------------------------------------------------------

    def announce(
        self, view: str | None, shaped: Iterable[tuple[EntityShape, tuple[Any, ...]]] | None
    ) -> None:
        """Let other processes forget what this one just forgot.

        Args:
            view: which feature view; None for all of the project.
            shaped: which entities; None for the view as a whole.
        """
        parts = self.parts()
        if parts is not None:
            if parts[0].is_watching:
                parts[0].start()
            parts[1].announce(self._encoded(view, shaped))

    def announcements(
        self, view: str, shaped: Iterable[tuple[EntityShape, tuple[Any, ...]]]
    ) -> list[Announcement]:
        """What `announce` would say, for who publishes it in one step with what it changes."""
        if self.parts() is None:
            return []
        topic = self._topic.encode()
        return [Announcement(topic, message) for message in self._encoded(view, shaped)]

    @property
    def unsent(self) -> int:
        """Announcements that the server has not taken yet."""
        parts = self._parts.get("made")
        return 0 if parts is None else parts[1].pending

    def _encoded(
        self, view: str | None, shaped: Iterable[tuple[EntityShape, tuple[Any, ...]]] | None
    ) -> Iterator[bytes]:
        shared = self._shared()
        is_owed = shared is not None and bool(shared.owed)
        return encode(channel_module.ORIGIN, view, shaped, is_owed=is_owed)

    def is_broadcast(self) -> bool:
        """Whether the server itself tells everybody what is written into the wrapped store."""
        return self.parts() is not None and self.is_tracked

    def stats(self) -> ChannelStats | None:
        """What the channel has seen; None where there is none or nobody used it yet."""
        parts = self._parts.get("made")
        if parts is None:
            return None
        channel, announcer = parts
        return ChannelStats(
            is_started=channel.is_started,
            is_whole=channel.is_whole,
            sessions=channel.sessions,
            gaps=channel.gaps,
            keys_heard=channel.keys_heard,
            changes_heard=channel.changes_heard,
            announced=announcer.sent,
            announce_errors=announcer.errors,
            pending=announcer.pending,
            last_error=channel.last_error,
            lags=channel.lags.snapshot(),
        )

    def close(self) -> None:
        """Stop listening and close what was opened, until it is needed again."""
        parts = self._parts.get("made")
        if parts is not None:
            parts[0].close()
            parts[1].close()


def server_of(settings: Any) -> RedisServer | None:
    """The server that settings name as Feast's Redis store does; None where there are none."""
    if settings is None:
        return None
    kind = getattr(settings.redis_type, "value", settings.redis_type)
    return RedisServer(settings.connection_string, kind, settings.sentinel_master)
