"""Keeping the hottest entities warm: what to read, by the traffic log, and reading it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from zlib import crc32

import numpy as np
import numpy.typing as npt
from feast.value_type import ValueType

from hotplate.errors import ConfigError, ServerError
from hotplate.operations.entities import EntityReader
from hotplate.pace import Pace
from hotplate.serving.rehearsal import Rehearsal, Warmable
from hotplate.tiers.shared import SharedTier
from hotplate.warming.files import private
from hotplate.warming.selection import Chosen
from hotplate.warming.traffic import key_of
from hotplate.warming.warmer import Batch, NotKept, Warmer, WarmingError, WarmingRate, WarmProgress

__all__ = ["Coverage", "WarmPlan", "WarmState", "Warming", "listed", "plan_of"]

Score = Callable[[dict[str, list[Any]]], object]
"""Scores entities by their join keys."""

_VERSION: Final = 2
_PLAIN: Final = "["
_BATCHES_A_SECOND: Final = 20
_REACH_S: Final = 2.0
_TYPES: Final = {
    "int64_val": ValueType.INT64,
    "int32_val": ValueType.INT32,
    "string_val": ValueType.STRING,
    "unix_timestamp_val": ValueType.UNIX_TIMESTAMP,
    "bytes_val": ValueType.BYTES,
    "double_val": ValueType.DOUBLE,
    "float_val": ValueType.FLOAT,
    "bool_val": ValueType.BOOL,
}


@dataclass(frozen=True)
class Coverage:
    """How much of the reads of one kind of entity the hottest of them make.

    Attributes:
        kind: what is read for them.
        logged: entities in the log.
        reads: of them, as logged.
        shares: float64 (entities,), share of the reads that the first 1, 2, ... make.
        taken: how many are taken.
        unusable: of these, how many have keys that are none of this kind, or are hashed and in no
            list that was given.
        hashed: the latter alone.
        uncounted: as `hotplate.warming.selection.Chosen`.
    """

    kind: Warmable
    logged: int
    reads: float
    shares: npt.NDArray[np.float64]
    taken: int
    unusable: int
    hashed: int
    uncounted: float

    @property
    def share(self) -> float:
        """What the taken ones make."""
        return float(self.shares[self.taken - 1]) if self.taken else 0.0

    def steps(
        self, shares: Sequence[float] = (0.5, 0.8, 0.9, 0.95, 0.99)
    ) -> list[tuple[float, int, int]]:
        """(share of the reads, entities that make it, bytes of memory they take)."""
        found = []
        for share in shares:
            count = int(np.searchsorted(self.shares, share - 1e-12)) + 1
            if count <= len(self.shares):
                found.append((share, count, count * self.kind.row_bytes))
        return found


@dataclass(frozen=True)
class WarmPlan:
    """What is to be read.

    Attributes:
        keys: join keys, with commas -> the values of entities, the hottest first.
        views: join keys, with commas -> the views that are read for them.
        coverage: how much that is, by join keys; empty for a plan that was kept.
    """

    keys: Mapping[str, Sequence[tuple[Any, ...]]]
    views: Mapping[str, Sequence[str]]
    coverage: Mapping[str, Coverage]

    def why_nothing(self, part: tuple[int, int], *, has_ids: bool) -> str:
        """Why nothing is to be read, and what to do.

        Args:
            part: as for `plan_of`.
            has_ids: whether a list of the entities that there are was given.
        """
        if not self.coverage:
            return "no entity of the log is of a view that is cached"
        taken = sum(one.taken for one in self.coverage.values())
        hashed = sum(one.hashed for one in self.coverage.values())
        if taken > sum(one.unusable for one in self.coverage.values()):
            return f"part {part[0] + 1}/{part[1]} has none of the {taken:,} entities"
        if not hashed:
            return "the ids of the log are of another type than the views declare"
        if has_ids:
            return (
                "the ids of the log are hashed, and the lists of --ids hold none of them. Name all "
                "entities of this project, as the views declare their ids"
            )
        return (
            "the ids of the log are hashed. Name the entities that there are with --ids FILE, or "
            "log ids as they are, online_store.traffic: {ids: plain}"
        )

    @property
    def reads(self) -> int:
        """Rows that are read at the most."""
        return sum(len(keys) * len(self.views[entity]) for entity, keys in self.keys.items())


def plan_of(
    rehearsal: Rehearsal,
    chosen: Mapping[str, Chosen],
    project: str,
    *,
    top: int | None = None,
    share: float | None = 0.9,
    part: tuple[int, int] = (0, 1),
    ids: Callable[[Warmable], Iterator[tuple[Any, ...]]] | None = None,
) -> WarmPlan:
    """What to read of what a traffic log names.

    Args:
        rehearsal: what can be kept warm.
        chosen: the hottest entities.
        project: the Feast project.
        top: so many entities of each kind at the most.
        share: of the reads that they should make.
        part: which of how many warmers this is; each takes entities of its own.
        ids: the entities that there are, for a log whose keys are hashed.
    """
    keys: dict[str, list[tuple[Any, ...]]] = {}
    views: dict[str, Sequence[str]] = {}
    coverage: dict[str, Coverage] = {}
    which, of = part
    for entity, one in chosen.items():
        kind = rehearsal.restricted(entity, one.views)
        if kind is None:
            continue
        count = one.first(most=top, share=share)
        named = one.keys[:count]
        known: Mapping[str, tuple[Any, ...]] = {}
        if ids is not None and any(not key.startswith(_PLAIN) for key in named):
            wanted = set(named)
            hashed = ((key_of(v, project, has_ids=False), v) for v in ids(kind))
            known = {key: values for key, values in hashed if key in wanted}
        found = [known.get(key) or kind.values_of(key) for key in named]
        mine = [
            values
            for key, values in zip(named, found, strict=True)
            if values is not None and crc32(key.encode("utf-8", "surrogatepass")) % of == which
        ]
        unusable = [key for key, values in zip(named, found, strict=True) if values is None]
        if mine:
            keys[entity], views[entity] = mine, kind.views
        coverage[entity] = Coverage(
            kind,
            len(one.keys),
            one.total,
            one.coverage(),
            count,
            len(unusable),
            sum(not key.startswith(_PLAIN) for key in unusable),
            one.uncounted,
        )
    return WarmPlan(keys, views, coverage)


def listed(files: Sequence[Path]) -> Callable[[Warmable], Iterator[tuple[Any, ...]]]:
    """Makes what reads the entities of a kind from files, each a column a join key.

    Raises:
        EntityError: when read: a file cannot be used for that kind.
    """

    def of(kind: Warmable) -> Iterator[tuple[Any, ...]]:
        names = kind.shape.join_keys
        types = {name: _TYPES[held] for name, held in zip(names, kind.shape.types, strict=True)}
        for chunk in EntityReader(types).chunks((), list(files))():
            for row in chunk:
                yield tuple(row[name] for name in names)

    return of


class WarmState:
    """The files in which a warming keeps what it reads, and how far it is.

    Each choice of groups and each part of several warmers has files of its own.

    Args:
        folder: in which they lie.
        project: the Feast project.
        groups: that are warmed.
        part: which of how many warmers this is.
    """

    def __init__(
        self,
        folder: Path,
        project: str,
        groups: Sequence[str] = (),
        part: tuple[int, int] = (0, 1),
    ) -> None:
        said = json.dumps([sorted(groups), part]).encode()
        name = f"warm-{quote(project, safe='')}-{blake2b(said, digest_size=4).hexdigest()}"
        self._plan, self._done = folder / f"{name}.json", folder / f"{name}.done"

    def keep(self, plan: WarmPlan) -> None:
        """Keep a plan; nothing of it is done.

        Raises:
            ConfigError: the folder cannot be written.
        """
        body = {
            "v": _VERSION,
            "keys": {entity: [_text(key) for key in keys] for entity, keys in plan.keys.items()},
            "views": {entity: list(views) for entity, views in plan.views.items()},
        }
        self._done.unlink(missing_ok=True)
        self._write(self._plan, json.dumps(body))

    def note(self, done: Mapping[str, int]) -> None:
        """Keep how many entities of each kind are done.

        Raises:
            ConfigError: the folder cannot be written.
        """
        self._write(self._done, json.dumps(done))

    def _write(self, path: Path, text: str) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with private(path) as file:
                file.write(text.encode())
        except OSError as error:
            raise ConfigError(
                f"{path.parent} cannot be written ({error.strerror}): name a folder with "
                "--state FOLDER or the variable HOTPLATE_STATE"
            ) from None

    def load(self, rehearsal: Rehearsal) -> WarmPlan:
        """What is left of the plan that was kept.

        Raises:
            WarmingError: there is none.
        """
        try:
            body = json.loads(self._plan.read_text("utf-8"))
            if body["v"] != _VERSION:
                raise ValueError
            done = self.done()
            keys, views = {}, {}
            for entity, texts in body["keys"].items():
                kind = rehearsal.restricted(entity, body["views"][entity])
                if kind is not None:
                    found = [kind.values_of(text) for text in texts[done.get(entity, 0) :]]
                    keys[entity] = [values for values in found if values is not None]
                    views[entity] = kind.views
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise WarmingError(
                f"{self._plan.parent} holds no warming of these groups and this part that could go "
                "on: begin one without --resume"
            ) from error
        return WarmPlan(keys, views, {})

    def done(self) -> dict[str, int]:
        """How many entities of each kind are done."""
        try:
            found = json.loads(self._done.read_text("utf-8"))
            return {str(entity): int(count) for entity, count in found.items()}
        except (OSError, ValueError, AttributeError):
            return {}

    def remove(self) -> None:
        """Nothing is left to go on with."""
        self._plan.unlink(missing_ok=True)
        self._done.unlink(missing_ok=True)


def _text(values: tuple[Any, ...]) -> str:
    return key_of(values, "", has_ids=True)


class Warming:
    """Reads what a plan names.

    Args:
        rehearsal: reads it.
        rate: how fast.
        suffers: whether whoever serves beside is slower than it should be.
        pace: holds the rate.
        score: scores entities, join key -> values, through a cache of outputs; called for each
            batch once all features are there.
        shared: what has to keep what is read: a batch that it did not keep is read again. None
            where this process is to be warm.
    """

    def __init__(
        self,
        rehearsal: Rehearsal,
        rate: WarmingRate,
        suffers: Callable[[], bool] = lambda: False,
        pace: Pace | None = None,
        score: Score | None = None,
        shared: SharedTier | None = None,
        **clocks: Any,
    ) -> None:
        self._rehearsal, self._rate = rehearsal, rate
        pace = pace or Pace(1)
        read = rehearsal.read if shared is None else partial(_read_into, shared, rehearsal)
        self._warmer = Warmer(read, rate, pace, suffers=suffers, **clocks)
        self._scorer: Warmer | None = None
        if score is not None:
            self._scorer = Warmer(partial(_score, score), rate, pace, suffers=suffers, **clocks)

    @property
    def has_outputs(self) -> bool:
        """Whether outputs are warmed, too."""
        return self._scorer is not None

    @property
    def step(self) -> int:
        """Reads a batch, at the most: a server answers a batch in one go, and others wait."""
        in_steps = max(1, int(self._rate.limit / _BATCHES_A_SECOND))
        return min(self._rehearsal.most_at_once, in_steps, self._warmer.most_in_batch())

    def batches(self, plan: WarmPlan) -> list[Batch]:
        """The batches of a plan: of every kind of entity the hottest first, in turns.

        Raises:
            WarmingError: one entity has more rows than a second may see.
        """
        for entity in plan.keys:
            rows = len(self._rehearsal.kinds[entity].views)
            if rows > self._rate.limit:
                raise WarmingError(
                    f"{self._rate.limit:g} rows a second are fewer than the {rows} of one "
                    f"{entity}, which are read at once: state a higher peak, or name some groups"
                )
        by_kind = [
            self._rehearsal.batches(entity, keys, self.step) for entity, keys in plan.keys.items()
        ]
        longest = max((len(one) for one in by_kind), default=0)
        return [one[at] for at in range(longest) for one in by_kind if at < len(one)]

    def run(self, plan: WarmPlan, state: WarmState | None = None) -> Iterator[WarmProgress]:
        """Read a plan; yields after each batch.

        Where nobody but this process keeps it, it ends when the memory is full.

        Args:
            plan: what.
            state: where it is kept how far it is.

        Raises:
            WarmingError: the source, or the scoring, failed too often; or the rate is too low.
        """
        batches = self.batches(plan)
        done = Counter(state.done() if state is not None else {})
        place = 0
        for progress in self._warmer.run(batches):
            batch = batches[place]
            place += 1
            done[batch.entity] += len(batch.keys)
            if state is not None:
                state.note(done)
            yield progress
            if self._rehearsal.is_full:
                break
        self._rehearsal.touch(batches[:place])
        if state is not None:
            state.remove()
        if self._scorer is not None:
            for progress in self._scorer.run(batches[:place]):
                yield replace(progress, stage="outputs")


def _read_into(shared: SharedTier, rehearsal: Rehearsal, batch: Batch) -> None:
    """Read a batch so that the shared tier has it.

    Raises:
        NotKept: it has not, as it did not answer.
        Exception: whatever the source raised.
    """
    try:
        if not shared.is_usable:
            shared.reach(_REACH_S)
        before = shared.failures
        rehearsal.read(batch)
        if shared.failures == before and shared.is_usable:
            return
        rehearsal.drop(batch)  # or memory would answer the second time, and nothing be shared
        problem = "it did not answer in time"
    except ServerError as error:
        problem = str(error)
    raise NotKept(f"the shared tier did not keep what was read: {problem}")


def _score(score: Score, batch: Batch) -> None:
    score(dict(zip(batch.entity.split(","), map(list, zip(*batch.keys, strict=True)), strict=True)))
