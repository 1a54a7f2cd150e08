"""Kinds of inputs, and whether it pays to keep the outputs of each.

A family is named by columns of the batch (the merchant's category, the channel), or by a function
of it. For each are counted rows, hits, distinct outputs, and *near-duplicates*: inputs that were
computed although one with the same output had been before, which differs from it only in the last
places of its floats. Many of them say that the key is too fine.

To look for an output and to keep it costs a little for every row, and is paid back by hits. A
family whose hits do not pay is *bypassed*: computed every time, without a key. After a while some
of it is let in again, to see whether it pays by now; where not, the next try is twice as far off.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from hotplate.outputs.batch import BESIDE, Batch
from hotplate.outputs.errors import OutputError

__all__ = ["Families", "Family", "FamilyStats", "Members"]

OTHER: Final = "(other)"
MISSING: Final = "(missing)"
_MOST: Final = 256
_SEEN_MOST: Final = 4_096
_OUTPUTS_MOST: Final = 10_000
_LONGEST_NS: Final = 3_600 * 10**9
_BOUNDS: Final = (0.001, 0.95)


@dataclass(frozen=True)
class FamilyStats:
    """Counts of one family since the start.

    Attributes:
        name: of the family.
        rows: that were asked for and that no rule forbade to cache.
        hits: answered from memory.
        computed: by the model, rows that were bypassed included.
        outputs: distinct ones among those computed, rounded as shadow checks are; at most 10,000.
        near_duplicates: computed though all but the last places of their floats, and the output,
            were those of another one of the last 4,096.
        bypassed: rows that were not looked for.
        is_bypassed: whether it is so now.
    """

    name: str
    rows: int
    hits: int
    computed: int
    outputs: int
    near_duplicates: int
    bypassed: int
    is_bypassed: bool

    @property
    def hit_rate(self) -> float:
        """Hits among the rows that were looked for."""
        looked = self.rows - self.bypassed
        return self.hits / looked if looked else 0.0


class Family:
    """One family; its owner holds the lock."""

    __slots__ = (
        "bypassed",
        "computed",
        "hits",
        "name",
        "near",
        "outputs",
        "pause_ns",
        "rows",
        "seen",
        "tried",
        "until_ns",
        "won",
    )

    def __init__(self, name: str, pause_ns: int) -> None:
        self.name = name
        self.rows = self.hits = self.computed = self.bypassed = self.near = 0
        self.outputs: set[bytes] = set()
        self.seen: dict[bytes, tuple[bytes, bytes]] = {}
        self.tried = self.won = 0  # since it was last judged
        self.until_ns = 0
        self.pause_ns = pause_ns

    def note(self, rows: int, hits: int) -> None:
        """Count rows that were looked for."""
        self.rows += rows
        self.hits += hits
        self.tried += rows
        self.won += hits

    def note_output(self, key: bytes, coarse: bytes, output: bytes) -> None:
        """Count an output; see `Families.note_outputs`."""
        if len(self.outputs) < _OUTPUTS_MOST:
            self.outputs.add(output)
        before = self.seen.get(coarse)
        if before is None:
            if len(self.seen) >= _SEEN_MOST:
                del self.seen[next(iter(self.seen))]
            self.seen[coarse] = (key, output)
        elif before[0] != key and before[1] == output:
            self.near += 1


class Members:
    """The families of the rows of one batch.

    Attributes:
        codes: int (rows), which of `families` each row is of.
        families: the families.
        is_bypassed: bool (rows).
    """

    def __init__(self, codes: npt.NDArray[np.intp], families: Sequence[Family], now_ns: int):
        self.codes = codes
        self.families = families
        skipped = np.array([one.until_ns > now_ns for one in families], np.bool_)
        self.is_bypassed: npt.NDArray[np.bool_] = skipped[codes]


class Families:
    """The families of one model's inputs.

    Args:
        by: columns of the batch, or a function of it that returns a label a row.
        least: rows that are looked at before a family is judged.
        pays_from: hit rate from which a family pays; None to find it out: what a row costs here,
            by what it costs the model.
        pause_ns: how long a family is first bypassed.
    """

    def __init__(
        self,
        by: Sequence[str] | Callable[[Any], Any],
        *,
        least: int,
        pays_from: float | None,
        pause_ns: int,
    ) -> None:
        self._by: Any = by if callable(by) else tuple(by)
        self._least, self._pays_from, self._pause_ns = least, pays_from, pause_ns
        self._families: dict[str, Family] = {}
        self._own_s = self._model_s = 0.0
        self._own_rows = self._model_rows = 0
        self._lock = threading.Lock()

    def restart_after_fork(self) -> None:
        """Make a new lock: the parent's may have been held by a thread that is not here."""
        self._lock = threading.Lock()

    @property
    def pays_from(self) -> float:
        """The hit rate from which a family pays."""
        if self._pays_from is not None:
            return self._pays_from
        if not self._model_rows or not self._own_rows or not self._model_s:
            return 0.0
        share = (self._own_s / self._own_rows) / (self._model_s / self._model_rows)
        return min(max(share, _BOUNDS[0]), _BOUNDS[1])

    # -- which family -----------------------------------------------------------------------------

    def members(self, batch: Batch, now_ns: int) -> Members:
        """The family of each row of a batch.

        Raises:
            OutputError: a column is not there, or the function does not answer a label a row.
        """
        codes, labels = pd.factorize(self._labels(batch), use_na_sentinel=False)
        with self._lock:
            found = [self._family(_shown(label)) for label in labels]
        return Members(np.asarray(codes, np.intp), found, now_ns)

    def of_row(
        self, row: npt.NDArray[Any], places: Mapping[str, int], beside: Mapping[str, Any] | None
    ) -> Family | None:
        """The family of one row of a matrix; None where it takes more than this to tell.

        Args:
            row: its numbers.
            places: where in it each field is.
            beside: further cells, by name.
        """
        if callable(self._by) or len(self._by) != 1:
            return None
        (name,) = self._by
        label = row[places[name]] if name in places else (beside or {}).get(name)
        if label is None or (name not in places and type(label) is not str):
            return None
        with self._lock:
            return self._family(_shown(label))

    def _family(self, name: str) -> Family:
        found = self._families.get(name)
        if found is None:
            if len(self._families) >= _MOST:
                name = OTHER
            found = self._families.setdefault(name, Family(name, self._pause_ns))
        return found

    def _labels(self, batch: Batch) -> Any:
        if callable(self._by):
            labels = _objects(self._by(batch.given))
            if len(labels) != batch.count:
                raise OutputError(
                    where="family",
                    problem=f"answered {len(labels):,} labels for {batch.count:,} rows",
                    fix="Return one for each row of the batch.",
                )
            return labels
        columns = [_objects(batch.required(name, "family", BESIDE)) for name in self._by]
        if len(columns) == 1:
            return columns[0]
        joined = np.empty(batch.count, np.object_)
        for place, cells in enumerate(zip(*columns, strict=True)):
            joined[place] = " ".join(map(_shown, cells))
        return joined

    # -- what becomes of it -----------------------------------------------------------------------

    def note_hit(self, family: Family) -> None:
        """Count one row that was answered from memory."""
        with self._lock:
            family.note(1, 1)

    def note(
        self,
        members: Members,
        is_looked: npt.NDArray[np.bool_],
        is_hit: npt.NDArray[np.bool_],
        computed: npt.NDArray[np.intp],
        now_ns: int,
    ) -> list[str]:
        """Count a batch, and judge families of which enough was seen.

        Args:
            members: of the batch.
            is_looked, is_hit: bool (rows): looked for; found.
            computed: places of the rows that the model was asked for.
            now_ns: on the cache's clock.

        Returns:
            The families that are bypassed from now on.
        """
        size = len(members.families)
        looked = np.bincount(members.codes[is_looked], minlength=size).tolist()
        hits = np.bincount(members.codes[is_hit], minlength=size).tolist()
        skipped = np.bincount(members.codes[members.is_bypassed], minlength=size).tolist()
        by_model = np.bincount(members.codes[computed], minlength=size).tolist()
        stopped = []
        with self._lock:
            for family, *counts in zip(
                members.families, looked, hits, skipped, by_model, strict=True
            ):
                family.note(counts[0], counts[1])
                family.rows += counts[2]
                family.bypassed += counts[2]
                family.computed += counts[3]
                stopped += self._judge(family, now_ns)
        return stopped

    def note_computed(self, family: Family, is_looked: bool, now_ns: int) -> list[str]:
        """The same for one row that the model was asked for, of a family that is not bypassed."""
        with self._lock:
            family.note(int(is_looked), 0)
            family.computed += 1
            return self._judge(family, now_ns)

    def _judge(self, family: Family, now_ns: int) -> list[str]:
        if family.tried < self._least or family.until_ns > now_ns:
            return []
        is_paying = family.won >= self.pays_from * family.tried
        family.tried = family.won = 0
        if is_paying:
            family.until_ns, family.pause_ns = 0, self._pause_ns
            return []
        family.until_ns = now_ns + family.pause_ns
        family.pause_ns = min(2 * family.pause_ns, max(_LONGEST_NS, self._pause_ns))
        return [family.name]

    def note_outputs(
        self,
        members: Members,
        rows: Sequence[int],
        keys: Sequence[bytes],
        coarse: Sequence[bytes],
        outputs: Sequence[bytes],
    ) -> None:
        """Look for near-duplicates among rows that were computed.

        Args:
            members: of the batch.
            rows: their places in it.
            keys: of each of them.
            coarse: the same, of inputs whose floats are rounded more coarsely.
            outputs: what they were answered, rounded.
        """
        of = members.codes[np.asarray(rows, np.intp)].tolist()
        with self._lock:
            for code, key, near, output in zip(of, keys, coarse, outputs, strict=True):
                members.families[code].note_output(key, near, output)

    def note_output(self, family: Family, key: bytes, coarse: bytes, output: bytes) -> None:
        """The same for one row."""
        with self._lock:
            family.note_output(key, coarse, output)

    def note_time(self, own_s: float, rows: int, model_s: float, model_rows: int) -> None:
        """How long a batch took, here and in the model; older ones count less and less."""
        with self._lock:
            if self._own_rows > 1_000_000:
                self._own_s, self._own_rows = self._own_s / 2, self._own_rows // 2
                self._model_s, self._model_rows = self._model_s / 2, self._model_rows // 2
            self._own_s += own_s
            self._own_rows += rows
            self._model_s += model_s
            self._model_rows += model_rows

    def stats(self, now_ns: int) -> tuple[FamilyStats, ...]:
        """The counts, the families with the most rows first."""
        with self._lock:
            found = [
                FamilyStats(
                    one.name,
                    one.rows,
                    one.hits,
                    one.computed,
                    len(one.outputs),
                    one.near,
                    one.bypassed,
                    one.until_ns > now_ns,
                )
                for one in self._families.values()
            ]
        return tuple(sorted(found, key=lambda one: -one.rows))


def _objects(values: Any) -> Any:
    """Labels as pandas factorizes them."""
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        values = values.to_pandas()
    if isinstance(values, pd.Series):
        values = values.to_numpy()
    if isinstance(values, np.ndarray):
        return values
    made = np.empty(len(values), np.object_)
    made[:] = values
    return made


def _shown(label: Any) -> str:
    """A label as a name; 3, 3.0 and np.float32(3) are the same."""
    if isinstance(label, (float, np.floating)):
        number = float(label)
        if number != number:
            return MISSING
        return str(int(number)) if number.is_integer() else repr(number)
    if label is None or label is pd.NA or label is pd.NaT:
        return MISSING
    return str(label)
