"""Where payments come from: a Redis stream that goes on, or a file that ends.

A source gives records in order, each at a place, and goes on behind any of them. How far it has
been read is not its own business: the ledger knows (`pipelines.fraud.ledger`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import redis

__all__ = ["Batch", "FileSource", "SourceError", "StreamSource"]

_COLUMNS: Final = {
    "TRANSACTION_ID": "transaction_id",
    "CUSTOMER_ID": "customer_id",
    "TERMINAL_ID": "terminal_id",
    "TX_AMOUNT": "amount",
    "TX_DATETIME": "at",
}
"""How the simulator and the Handbook's data call them."""
_BLOCK_MS: Final = 1_000
_COUNTED_AT_ONCE: Final = 10_000


class SourceError(Exception):
    """A source cannot be read, or has lost records; the message says what to do."""


class Batch(NamedTuple):
    """Some records.

    Attributes:
        records: (place, fields).
        position: behind the last of them.
    """

    records: Sequence[tuple[str, Mapping[str, Any]]]
    position: str


class FileSource:
    """A Parquet or CSV file of payments; a place is the number of a row, from 0 on.

    Args:
        path: the file, in the columns of `read_records` or in those of the Handbook's data.
        part: (which, of how many): the cards of one of several processes; which is from 0 on.
    """

    def __init__(self, path: Path, part: tuple[int, int] = (0, 1)) -> None:
        self.path = path
        which, of = part
        self.name = f"file:{path.resolve()}" + (f"#{which + 1}/{of}" if of > 1 else "")
        try:
            is_text = path.suffix.lower() == ".csv"
            self._table = _read_csv(path) if is_text else pq.read_table(path)
        except (OSError, pa.ArrowException) as error:
            raise SourceError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
        names = [_COLUMNS.get(name, name) for name in self._table.column_names]
        if "transaction_id" not in names:
            raise SourceError(
                f"{path} has no column transaction_id (it has: {', '.join(names)}): name its "
                "columns transaction_id, customer_id, terminal_id, amount, at and kind"
            )
        table = _in_ms(self._table.rename_columns(names))
        if of > 1:
            if "customer_id" not in names or not pa.types.is_integer(
                table.schema.field("customer_id").type
            ):
                raise SourceError(f"{path} has no customer_id of whole numbers to divide it by")
            cards = table.column("customer_id").fill_null(0).to_numpy()
            table = table.filter(pa.array(cards % of == which))
        self._table = table

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def batches(self, position: str | None, size: int, wait_ms: float) -> Iterator[Batch]:
        """Everything behind a position, `size` records at a time.

        Raises:
            SourceError: the position is none of this file.
        """
        said, _, seen = (position or "0").partition(":")
        start, ids = int(said), self._table.column("transaction_id")
        digest = blake2b(digest_size=16)
        digest.update(_joined(ids.slice(0, start)))
        if start > len(self) or (seen and seen != digest.hexdigest()):
            raise SourceError(
                f"{self.path} is another file than that of which {start:,} rows were read: give it "
                "another name, or restore it"
            )
        for at in range(start, len(self), size):
            rows = self._table.slice(at, size).to_pylist()
            digest.update(_joined(ids.slice(at, size)))
            records = [(str(at + n), row) for n, row in enumerate(rows)]
            yield Batch(records, f"{at + len(rows)}:{digest.hexdigest()}")


class StreamSource:
    """A Redis or Valkey stream of payments; a place is the id of an entry.

    One process reads a stream: for several, let producers write to several streams, by card, so
    that the payments of a card are decided in their order.

    Args:
        client: of redis-py.
        key: of the stream.
        ends: whether to end when nothing more is there, as tests and replays want.
    """

    def __init__(self, client: redis.Redis, key: str, *, ends: bool = False) -> None:
        self._client = client
        self._key = key
        self._ends = ends
        self._is_open = True
        self.name = f"stream:{key}"

    def stop(self) -> None:
        """End after the batch that is being read."""
        self._is_open = False

    def batches(self, position: str | None, size: int, wait_ms: float) -> Iterator[Batch]:
        """Everything behind a position, for ever: up to `size` records at a time.

        Args:
            position: the id behind which to go on, and how many entries were added up to it, as in
                `1790000000000-0:57`, or the id alone; None for the beginning.
            size: records at the most.
            wait_ms: how long the first record of a batch waits for others.

        Raises:
            SourceError: entries behind the position were removed before they were read, or the key
                holds something else.
        """
        last, _, said = (position or "0-0").partition(":")
        rank = int(said) if said else None
        while self._is_open:
            found, removed = self._read(last, size)
            if found and len(found) < size and wait_ms and not self._ends:
                time.sleep(wait_ms / 1_000)
                found, removed = self._read(last, size)
            if removed is not None:
                if rank is None:  # as many as were added before the first that is read now
                    rank = removed + (self._count_upto(last) if position else 0)
                if removed > rank:
                    raise self._lost(last)
            if found:
                last, rank = found[-1][0], None if rank is None else rank + len(found)
                yield Batch(found, last if rank is None else f"{last}:{rank}")
            elif self._ends:
                return
            else:
                self._wait(last)

    def _read(
        self, last: str, count: int
    ) -> tuple[list[tuple[str, Mapping[str, Any]]], int | None]:
        """Entries behind one, and how many of all that were ever added are gone, at one moment.

        The latter is None where the server does not say (before Redis 7), or nobody has written.
        """
        try:
            with self._client.pipeline(transaction=True) as pipe:
                pipe.xinfo_stream(self._key)
                pipe.xread({self._key: last}, count)
                said, reply = pipe.execute(raise_on_error=False)
        except (redis.ConnectionError, redis.TimeoutError) as error:
            if self._ends:
                raise SourceError(
                    f"the server of stream {self._key!r} does not answer: {error}"
                ) from error
            time.sleep(0.5)
            return [], None
        for one in (said, reply):
            if isinstance(one, Exception) and "no such key" not in str(one).lower():
                raise SourceError(f"key {self._key!r} is no stream: {one}") from one
        if isinstance(said, Exception):  # nobody has written to it yet
            return [], None
        if _order(said.get("max-deleted-entry-id", b"0-0")) > _order(last):
            raise self._lost(last)
        added = said.get("entries-added")
        removed = None if added is None else int(added) - int(said["length"])
        if not reply:
            return [], removed
        entries = reply[0][1] if isinstance(reply, list) else next(iter(reply.values()))[0]
        return [(place.decode(), _named(fields)) for place, fields in entries], removed

    def _count_upto(self, last: str) -> int:
        """How many entries up to one are still there."""
        count, start = 0, "-"
        while True:
            found: Any = self._client.xrange(self._key, start, last, _COUNTED_AT_ONCE)
            if not found:
                return count
            count += len(found)
            start = f"({found[-1][0].decode()}"

    def _wait(self, last: str) -> None:
        """Until there is something, or for a second."""
        try:
            self._client.xread({self._key: last}, 1, _BLOCK_MS)
        except (redis.ConnectionError, redis.TimeoutError):
            time.sleep(0.5)
        except redis.ResponseError as error:
            raise SourceError(f"stream {self._key!r}: {error}") from error

    def _lost(self, last: str) -> SourceError:
        return SourceError(
            f"stream {self._key!r}: entries behind {last} were removed before they were read: "
            "payments were lost. Keep streams longer (XTRIM, MAXLEN); to go on with what is there, "
            "use --from with the id of the entry before"
        )


def _named(fields: Mapping[bytes, bytes]) -> dict[str, bytes]:
    return {name.decode(errors="replace"): value for name, value in fields.items()}


def _joined(ids: pa.ChunkedArray) -> bytes:
    return b"".join(f"{one}\n".encode() for one in ids.to_pylist())


def _read_csv(path: Path) -> pa.Table:
    """Ids are texts, whatever they look like: 007 is not 7."""
    kinds = {name: pa.string() for name in ("transaction_id", "TRANSACTION_ID")}
    return pa_csv.read_csv(path, convert_options=pa_csv.ConvertOptions(column_types=kinds))


def _in_ms(table: pa.Table) -> pa.Table:
    """A table whose times are ms since 1970: to make objects of them takes longer than the rest."""
    place = table.column_names.index("at") if "at" in table.column_names else -1
    if place < 0 or not pa.types.is_timestamp(table.schema.field(place).type):
        return table
    column = table.column(place)
    moments = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    return table.set_column(place, "at", moments)


def _order(entry_id: str | bytes) -> tuple[int, int]:
    text = entry_id.decode() if isinstance(entry_id, bytes) else entry_id
    ms, _, number = text.partition("-")
    return int(ms), int(number or 0)
