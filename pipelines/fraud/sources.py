"""Where payments come from: a Redis stream that goes on, or a file that ends.

A source gives records in order, each at a place, and goes on behind any of them. How far it has
been read is not its own business: the ledger knows (`pipelines.fraud.ledger`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
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
_PAUSE_S: Final = 0.002


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
            self._table = pa_csv.read_csv(path) if is_text else pq.read_table(path)
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
            cards = table.column("customer_id").to_numpy()
            table = table.filter(pa.array(cards % of == which))
        self._table = table

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def batches(self, position: str | None, size: int, wait_ms: float) -> Iterator[Batch]:
        """Everything behind a position, `size` records at a time.

        Raises:
            SourceError: the position is none of this file.
        """
        start = 0 if position is None else int(position)
        if start > len(self):
            raise SourceError(
                f"{self.path} has {len(self):,} rows, and {start:,} of them were read: it is "
                "another file than before. Give it another name, or restore it"
            )
        for at in range(start, len(self), size):
            rows = self._table.slice(at, size).to_pylist()
            yield Batch([(str(at + n), row) for n, row in enumerate(rows)], str(at + len(rows)))


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
            position: the id behind which to go on; None for the beginning.
            size: records at the most.
            wait_ms: how long the first record of a batch waits for others.

        Raises:
            SourceError: entries behind the position were removed before they were read, or the key
                holds something else.
        """
        last = position or "0-0"
        self._check(last)
        while self._is_open:
            found = self._read(last, size, 1 if self._ends else _BLOCK_MS)
            if not found and self._ends:
                return
            if found and len(found) < size and wait_ms and not self._ends:
                time.sleep(wait_ms / 1_000)
                found += self._read(found[-1][0], size - len(found), None)
            if found:
                last = found[-1][0]
                yield Batch(found, last)

    def _read(
        self, last: str, count: int, block_ms: int | None
    ) -> list[tuple[str, Mapping[str, Any]]]:
        try:
            reply: Any = self._client.xread({self._key: last}, count, block_ms)
        except redis.ResponseError as error:
            raise SourceError(f"stream {self._key!r}: {error}") from error
        except (redis.ConnectionError, redis.TimeoutError):
            time.sleep(_PAUSE_S if self._ends else 0.5)
            if self._ends:
                raise
            return []
        if not reply:
            return []
        entries = reply[0][1] if isinstance(reply, list) else next(iter(reply.values()))[0]
        return [
            (
                place.decode(),
                {name.decode(errors="replace"): value for name, value in fields.items()},
            )
            for place, fields in entries
        ]

    def _check(self, last: str) -> None:
        try:
            said: Any = self._client.xinfo_stream(self._key)
        except redis.ResponseError as error:
            if "no such key" in str(error).lower():
                return  # nobody has written to it yet
            raise SourceError(f"key {self._key!r} is no stream: {error}") from error
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise SourceError(
                f"the server of stream {self._key!r} does not answer: {error}"
            ) from error
        removed = said.get("max-deleted-entry-id", b"0-0")
        if _order(removed) > _order(last):
            raise SourceError(
                f"stream {self._key!r}: entries up to {removed.decode()} were removed, and only "
                f"those up to {last} were read: payments in between were lost. Keep streams longer "
                f"(XTRIM, MAXLEN); to go on with what is there, use --from {removed.decode()}"
            )


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
