"""The seams between the rooms, and the words that have one meaning everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

from hotplate.codec import Layout
from hotplate.durations import NO_LIMIT_NS
from hotplate.keys import Key, ViewIdentity, has_integer_keys, key_base, make_key

__all__ = [
    "ABSENT",
    "MISS",
    "NOTHING_UNHEARD",
    "NO_LEASE_NEEDED",
    "Found",
    "Freshness",
    "Lease",
    "LoadRequest",
    "SharedRows",
    "Source",
    "Tier",
    "TimedRows",
    "View",
]


class _Word(Enum):
    MISS = "MISS"
    ABSENT = "ABSENT"

    def __repr__(self) -> str:
        return self.value


MISS: Final = _Word.MISS
"""Not in the cache."""

ABSENT: Final = _Word.ABSENT
"""Known not to exist at the source."""


NOTHING_UNHEARD: Final = b"\0"
"""What a lease says of messages where none can arrive without being heard."""


class Lease:
    """Until when this process knows that it has heard of every change.

    Event-coherent rows are served from memory only under a valid lease. The event channel renews
    it; where nothing else than age bounds a row, the lease never ends.

    Attributes:
        until_ns: on the cache's clock.
        unheard: its first byte is not 0 while a message has arrived that nobody has heard yet.
            The kernel writes it, while the interpreter may be busy with whoever reads.
    """

    __slots__ = ("_on_lapse", "unheard", "until_ns")

    def __init__(self, until_ns: int, on_lapse: Callable[[], None] = lambda: None) -> None:
        self.until_ns = until_ns
        self.unheard: bytes | bytearray = NOTHING_UNHEARD
        self._on_lapse = on_lapse

    def is_valid(self, now_ns: int) -> bool:
        """Whether it holds now; where not, whoever renews it is told that it is missed."""
        if now_ns <= self.until_ns:
            return True
        self._on_lapse()
        return False

    def is_whole(self, now_ns: int) -> bool:
        """Whether it holds now, and nothing has arrived that nobody has heard yet."""
        return self.is_valid(now_ns) and not self.unheard[0]


NO_LEASE_NEEDED: Final = Lease(NO_LIMIT_NS)


class Tier(Enum):
    """Where an answer came from."""

    MEMORY = "memory"
    SHARED = "shared"
    SOURCE = "source"
    LAST_GOOD = "last_good"


class View:
    """One identity of a feature view, as the engine and the sources know it.

    Attributes:
        identity: what separates its entries from all others.
        layout: how its rows are packed.
        has_integer_keys: whether its keys are integers.
        base: what is added to the value of such a key.
        token: what its keys begin with. Replaced when the view as a whole is invalidated: the
            entries under the old token can then no longer be reached.
        is_shareable: whether its rows may go into the shared tier. Rows that are computed may not:
            what they were computed from changes without anything being written to the view.
    """

    __slots__ = ("base", "has_integer_keys", "identity", "is_shareable", "layout", "token")

    def __init__(self, identity: ViewIdentity, layout: Layout, token: int) -> None:
        self.identity = identity
        self.layout = layout
        self.has_integer_keys = has_integer_keys(identity.shape)
        self.is_shareable = True
        self.renew(token)

    def renew(self, token: int) -> None:
        """From now on keys begin with another token."""
        self.token = token
        self.base = key_base(token)

    def key(self, values: tuple[Any, ...]) -> Key:
        """The key of an entity by its values, in the order of the sorted join keys."""
        return make_key(self.token, values, is_integer=self.has_integer_keys)

    def __repr__(self) -> str:
        return f"View({self.identity.project}:{self.identity.view} token={self.token})"


@dataclass(frozen=True)
class LoadRequest:
    """The keys of one view that a source is asked for.

    Attributes:
        view: whose rows.
        table: the source's own handle of it: for Feast its feature view.
        keys: distinct keys of that view.
        is_check: whether it is only looked at what the source says: nothing is written for it.
    """

    view: View
    table: Any
    keys: Sequence[Key]
    is_check: bool = False


class TimedRows(list[bytes]):
    """Rows of a source whose truth changes with time alone, even where nothing is written.

    Attributes:
        lives_ns: for each row how long after its load began it holds.
    """

    __slots__ = ("lives_ns",)

    def __init__(self, rows: Iterable[bytes], lives_ns: Sequence[int]) -> None:
        super().__init__(rows)
        self.lives_ns = lives_ns


class Found(NamedTuple):
    """What the shared tier has for one key.

    Attributes:
        row: a row with the stamp it would have here, or None.
        slot: the place of the entry, to be claimed or filled; None where there is none.
        is_busy: another process loads it.
    """

    row: bytes | None = None
    slot: Any = None
    is_busy: bool = False


class SharedRows(Protocol):
    """The shared tier, as the engine sees it. No method raises for a fault of the server."""

    @property
    def is_usable(self) -> bool:
        """Whether it is worth asking now."""

    @property
    def lease_s(self) -> float:
        """How long to wait for a load of another process."""

    def look(self, asked: Sequence[tuple[View, Key]]) -> list[Found]:
        """Find rows."""

    def claim(self, slots: Sequence[Any]) -> list[Found]:
        """Take the leases to load what belongs into slots, unless others are faster."""

    def fill(self, items: Iterable[tuple[Any, bytes, int]]) -> None:
        """Keep rows: (slot, row, how long it may live in ns)."""

    def release(self, slots: Iterable[Any]) -> None:
        """Give leases back: the load failed."""


class Source(Protocol):
    """Where the truth is read. All requests of one call are one batch: one round trip if it can."""

    def load(self, requests: Sequence[LoadRequest]) -> Sequence[list[bytes] | Exception]:
        """Read every key of every request.

        Returns:
            For each request a packed row a key, in order, without stamp and jitter, as `TimedRows`
            where they do not hold for as long as nothing is written; or the error of its part,
            where the source has parts that fail by themselves.
        """

    async def load_async(
        self, requests: Sequence[LoadRequest]
    ) -> Sequence[list[bytes] | Exception]:
        """The same for callers on an event loop."""


@dataclass(frozen=True, slots=True)
class Freshness:
    """How fresh one row of an answer is.

    Attributes:
        group: the policy's group.
        tier: where it came from.
        age_s: seconds from the instant before its read of the source began until the request.
        expires_in_s: seconds from the request until it may no longer be served; infinite without
            a ttl.
        deadline_ns: that instant on the cache's clock.
        is_default: whether the source knows no such entity, and the answer is what the group
            declares for that.
    """

    group: str
    tier: Tier
    age_s: float
    expires_in_s: float
    deadline_ns: int
    is_default: bool = False
