"""How a stream is followed, and what a consumer says it has done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from hotplate.errors import ConfigError
from hotplate.operations.stream_group import Lag, is_start
from hotplate.servers.redis import KINDS

__all__ = ["Consumed", "ConsumerSettings"]

_BATCH_MAX: Final = 10_000


@dataclass(frozen=True)
class ConsumerSettings:
    """How a stream is followed.

    Attributes:
        group: the consumer group; it is made where there is none.
        consumer: this consumer's name in it; one that nobody else has if left out.
        batch: entries that are read at once; bounds the memory, too.
        block_s: how long to wait for entries, and so how long a stop may take.
        claim_after_s: entries that a consumer was handed this long ago and has not finished are
            taken over; longer than any batch takes.
        start: where a new group begins: `0` for the first entry there is, `$` for what is added
            from now on, or an id.
        once: end when nothing is left, instead of waiting for more.
        dead: the stream for dead letters; `<stream>:dead` if left out.
        dead_max: about how many of them are kept.
        keep_dropped: whether events that are dropped for a reason become dead letters, too.
        refuse_unknown: whether an entry with a column that the view does not know is unreadable.
        connection_string: of the server that has the stream, in Feast's form; that of the event
            logs if left out.
        redis_type: `redis`, `redis_cluster` or `redis_sentinel`, for `connection_string`.
        sentinel_master: the name by which sentinels know the primary.

    Raises:
        ConfigError: one is out of range.
    """

    group: str = "hotplate"
    consumer: str | None = None
    batch: int = 500
    block_s: float = 1.0
    claim_after_s: float = 60.0
    start: str = "0"
    once: bool = False
    dead: str | None = None
    dead_max: int = 100_000
    keep_dropped: bool = False
    refuse_unknown: bool = False
    connection_string: str | None = field(default=None, repr=False)
    redis_type: str = "redis"
    sentinel_master: str = "mymaster"

    def __post_init__(self) -> None:
        _require(1 <= self.batch <= _BATCH_MAX, f"batch must be from 1 to {_BATCH_MAX:,}")
        _require(self.block_s > 0, "block_s must be more than 0 seconds")
        _require(self.claim_after_s > 0, "claim_after_s must be more than 0 seconds")
        _require(self.dead_max >= 1, "dead_max must be at least 1")
        _require(bool(self.group) and self.consumer != "", "group and consumer need a name")
        _require(is_start(self.start), "start must be 0, $ or the id of an entry")
        _require(self.redis_type in KINDS, f"redis_type must be one of {', '.join(KINDS)}")


def _require(is_so: bool, problem: str) -> None:
    if not is_so:
        raise ConfigError(f"stream consumer: {problem}")


@dataclass(frozen=True)
class Consumed:
    """What a consumer has done since it began.

    Attributes:
        read: entries that it was handed.
        accepted: events that were appended.
        dropped: reason -> events that do not count; see `hotplate.windows.events.REASONS`.
        unreadable: entries that are no events.
        letters: dead letters that were added.
        gone: entries that were taken out of the stream after they had been handed out, unfinished.
        elsewhere: entries that had been finished before, or were by another consumer.
        claimed: entries, among those read, that were taken over.
        unknown: column that the view does not know -> entries that had it.
        rate_s: entries a second, of late.
        lag: how far the group is behind; None where it cannot be seen.
        trouble: why it waits; None where it does not.
    """

    read: int = 0
    accepted: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    unreadable: int = 0
    letters: int = 0
    gone: int = 0
    elsewhere: int = 0
    claimed: int = 0
    unknown: Mapping[str, int] = field(default_factory=dict)
    rate_s: float = 0.0
    lag: Lag | None = None
    trouble: str | None = None
