"""The oracle over all of it: a bare store, a cached store, a fake clock, random operations.

Both stores lie over the same data. Some writes go past the cache, as another process's would; the
oracle keeps, for every view and entity, what the bare store answered from when on. Whatever the
cached store answers must be what the bare store answered at some moment no older than the group's
bound and no older than the last write or invalidation that went through the cache: values,
statuses, types, timestamps, order and duplicates. Where nothing was written past the cache that
leaves exactly one answer.

`make soak` runs the long form (`HOTPLATE_ORACLE_EXAMPLES`), over 100,000 operations a store.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from feast import types as ft
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

import hotplate
from hotplate import CachePolicy

from ..conftest import settings_of
from ..stores import USER, Repo

EXAMPLES = int(os.environ.get("HOTPLATE_ORACLE_EXAMPLES", "25"))
STEPS = 60
START = datetime(2025, 6, 1, tzinfo=UTC)

SCHEMAS: dict[str, dict[str, Any]] = {
    "short": {"s_a": ft.Int64, "s_b": ft.Float64},
    "swr": {"w_a": ft.Float32, "w_b": ft.Float32},
    "zero": {"z_a": ft.Int64},
    "never": {"n_a": ft.String},
    "forever": {"f_a": ft.String, "f_b": ft.Array(ft.Int64), "f_c": ft.Bool},
}
POLICIES = {
    "short": CachePolicy(ttl="10s", negative_ttl="3s", jitter=0.2),
    "swr": CachePolicy(ttl="20s", stale_while_revalidate="8s", jitter=0),
    "zero": CachePolicy(ttl="0s"),
    "never": CachePolicy(ttl="1h", cache="never"),
    "forever": CachePolicy(ttl="none"),
}
BOUND_S = {"short": 10.0, "swr": 20.0, "zero": 0.0, "never": 0.0, "forever": float("inf")}
ABSENT_BOUND_S = {"short": 3.0, "swr": 5.0, "zero": 0.0, "never": 0.0, "forever": 5.0}
FEATURES = [f"{view}:{name}" for view, schema in SCHEMAS.items() for name in schema]
VIEW_OF = {ref.split(":")[1]: ref.split(":")[0] for ref in FEATURES}

_values = {
    ft.Int64: st.integers(-5, 5).map(lambda x: Value(int64_val=x)),
    ft.Float64: st.sampled_from([0.0, -0.0, 0.1, 1e300]).map(lambda x: Value(double_val=x)),
    ft.Float32: st.sampled_from([0.0, 0.5, 0.1]).map(lambda x: Value(float_val=x)),
    ft.String: st.sampled_from(["", "a", "b"]).map(lambda x: Value(string_val=x)),
    ft.Bool: st.booleans().map(lambda x: Value(bool_val=x)),
}
_fresh_ids = itertools.count(1)


def _value(dtype: Any) -> st.SearchStrategy[Value]:
    known = _values.get(dtype) if isinstance(dtype, ft.PrimitiveFeastType) else None
    if known is None:
        made = Value()
        made.int64_list_val.val.extend([1, 2])
        known = st.sampled_from([made, Value(int64_list_val={"val": []})])
    return st.one_of(known, known, st.just(Value()))


Cell = tuple[tuple[bytes, int, bytes], ...]
"""What a response says of one view and one row: for each feature value, status, timestamp."""


def cells_of(response: Any, view: str, row: int) -> Cell:
    """Read a cell out of a protobuf response."""
    names = list(response.proto.metadata.feature_names.val)
    found = []
    for name in SCHEMAS[view]:
        if name in names:
            vector = response.proto.results[names.index(name)]
            found.append(
                (
                    vector.values[row].SerializeToString(deterministic=True),
                    vector.statuses[row],
                    vector.event_timestamps[row].SerializeToString(),
                )
            )
    return tuple(found)


class Oracle(RuleBasedStateMachine):
    """Random operations on both stores."""

    repo: Repo
    operations = 0
    kept = 0

    def __init__(self) -> None:
        super().__init__()
        self.repo.cache.clear()
        self.repo.cache.preload(60)  # from now on it writes down what it holds
        base = next(_fresh_ids) * 1_000
        self.users = [base + i for i in range(4)]
        self.history: dict[tuple[str, int], list[tuple[float, Cell]]] = {}
        self.moment = 0
        self.failing = False
        self.tables = {view: self.repo.bare.get_feature_view(view) for view in SCHEMAS}
        for view in SCHEMAS:
            for user in self.users:
                self._observe(view, user)

    @property
    def now(self) -> float:
        return self.repo.clock.now_ns() / 1e9

    def _observe(self, view: str, user: int) -> None:
        """Note what the bare store says of an entity from now on."""
        features = [f"{view}:{name}" for name in SCHEMAS[view]]
        bare = self.repo.bare.get_online_features(features, [{"user_id": user}])
        self.history.setdefault((view, user), []).append((self.now, cells_of(bare, view, 0)))

    def _possible(self, view: str, user: int) -> list[Cell]:
        """What the cached store may say of an entity now: the present state, and past ones.

        A past state may be served while its row is within the bound; the latest moment at which
        it can have been read is the one in which the next state began.
        """
        entries = self.history[view, user]
        possible = [entries[-1][1]]
        for (_, cell), (until, _) in itertools.pairwise(entries):
            is_absent = all(value == b"" and not stamp for value, _, stamp in cell)
            bound = ABSENT_BOUND_S[view] if is_absent else BOUND_S[view]
            if bound > 0 and until >= self.now - bound:
                possible.append(cell)
        return possible

    def _row(self, data: st.DataObject, view: str, user: int, late: int) -> Any:
        values = {name: data.draw(_value(dtype)) for name, dtype in SCHEMAS[view].items()}
        self.moment += 1
        moment = START + timedelta(seconds=self.moment + late)
        key = EntityKey(join_keys=["user_id"], entity_values=[Value(int64_val=user)])
        return key, values, moment, None

    @rule(
        data=st.data(),
        view=st.sampled_from(list(SCHEMAS)),
        who=st.lists(st.integers(0, 3), min_size=1, max_size=3),
        late=st.sampled_from([0, 0, 0, -5, 100]),
        through=st.booleans(),
    )
    def write(
        self, data: st.DataObject, view: str, who: list[int], late: int, through: bool
    ) -> None:
        """Write rows, past the cache or through it; older ones and nulls among them."""
        Oracle.operations += 1
        store = self.repo.hot if through else self.repo.bare
        rows = [self._row(data, view, self.users[i], late) for i in who]
        store._get_provider().online_write_batch(store.config, self.tables[view], rows, None)
        for i in set(who):
            self._observe(view, self.users[i])
            if through:
                self._forget(view, self.users[i])

    def _forget(self, view: str, user: int) -> None:
        """From now on only the present state may be served."""
        self.history[view, user] = self.history[view, user][-1:]

    @rule(seconds=st.sampled_from([0.001, 1.0, 2.9, 3.1, 5.0, 9.9, 10.1, 25.0]))
    def advance(self, seconds: float) -> None:
        """Let time pass."""
        Oracle.operations += 1
        self.repo.clock.advance(seconds)

    @rule(view=st.sampled_from(list(SCHEMAS)), who=st.integers(0, 3))
    def invalidate(self, view: str, who: int) -> None:
        """Forget one entity."""
        Oracle.operations += 1
        self.repo.cache.invalidate(view, {"user_id": self.users[who]})
        self._forget(view, self.users[who])

    @rule(view=st.sampled_from(list(SCHEMAS)))
    def invalidate_group(self, view: str) -> None:
        """Forget a group."""
        Oracle.operations += 1
        self.repo.cache.invalidate(view)
        for user in self.users:
            self._forget(view, user)

    @rule(
        features=st.lists(st.sampled_from(FEATURES), min_size=1, max_size=9, unique=True),
        who=st.lists(st.integers(0, 3), min_size=1, max_size=6),
        as_columns=st.booleans(),
        as_text=st.booleans(),
        own_path=st.booleans(),
    )
    def read(
        self, features: list[str], who: list[int], as_columns: bool, as_text: bool, own_path: bool
    ) -> None:
        """Read through the cache and compare every cell with what it may be."""
        Oracle.operations += 1
        users = [self.users[i] for i in who]
        ids: list[Any] = [str(user) for user in users] if as_text else users
        entities: Any = {"user_id": ids} if as_columns else [{"user_id": i} for i in ids]
        response = self.repo.hot.get_online_features(
            features, entities, include_feature_view_version_metadata=own_path
        )
        self.repo.cache.runtime.engine.refresher.drain()
        as_dict = response.to_dict()
        assert as_dict["user_id"] == users
        assert set(as_dict) == {"user_id"} | {ref.split(":")[1] for ref in features}
        bare = self.repo.bare.get_online_features(features, entities)
        assert list(as_dict) == list(bare.to_dict())
        for view in {ref.split(":")[0] for ref in features}:
            asked = [name for name in SCHEMAS[view] if f"{view}:{name}" in features]
            wanted = [list(SCHEMAS[view]).index(name) for name in asked]
            for row, user in enumerate(users):
                cell = cells_of(response, view, row)
                possible = [tuple(c[i] for i in wanted) for c in self._possible(view, user)]
                note(f"{view} {user} row {row}: {cell} of {possible}")
                assert cell in possible
                self._check_dict(response, as_dict, asked, row)

    def _check_dict(self, response: Any, as_dict: Any, asked: list[str], row: int) -> None:
        """What `to_dict` said before equals what Feast makes of the protobuf message."""
        from feast.type_map import feast_value_type_to_python_type

        names = list(response.proto.metadata.feature_names.val)
        for name in asked:
            value = response.proto.results[names.index(name)].values[row]
            made = feast_value_type_to_python_type(value)
            got = as_dict[name][row]
            assert repr(got) == repr(made)
            assert type(got) is type(made)

    @rule(
        data=st.data(),
        is_killed=st.booleans(),
        view=st.sampled_from(list(SCHEMAS)),
        between=st.sampled_from(["nothing", "nothing", "write", "invalidate", "apply"]),
        seconds=st.sampled_from([0.0, 0.001, 3.1]),
    )
    def restart(
        self, data: st.DataObject, is_killed: bool, view: str, between: str, seconds: float
    ) -> None:
        """The process ends, others go on for a while, and the next one takes its place."""
        Oracle.operations += 1
        ended = self.repo.hot._get_provider().online_store
        if is_killed and "made" in ended._preloading._made:
            ended._preloading._made["made"]._ends.set()
        elif not is_killed:
            asyncio.run(ended.close())
        self.repo.clock.advance(seconds)
        other = self.repo.open_hot()
        if between == "write":
            rows = [self._row(data, view, self.users[0], 0)]
            other._get_provider().online_write_batch(other.config, self.tables[view], rows, None)
            self._observe(view, self.users[0])
            self._forget(view, self.users[0])
        elif between == "invalidate":
            hotplate.of(other).invalidate(view, {"user_id": self.users[0]})
            self._forget(view, self.users[0])
        elif between == "apply":
            other.apply([other.get_feature_view(view)])
        self.repo.clock.advance(seconds)
        self.repo.hot = self.repo.open_hot()
        Oracle.kept += self.repo.cache.preload(60).kept

    @rule(who=st.integers(0, 3), view=st.sampled_from(list(SCHEMAS)))
    def failing_source(self, who: int, view: str) -> None:
        """With the source away a read either answers from memory or raises the source's error."""
        Oracle.operations += 1
        source = self.repo.cache.runtime.engine.source
        load = source.load

        def away(requests: Any) -> Any:
            raise ConnectionError("away")

        source.load = away  # type: ignore[method-assign]
        user = self.users[who]
        features = [f"{view}:{name}" for name in SCHEMAS[view]]
        try:
            response = self.repo.hot.get_online_features(features, [{"user_id": user}])
        except ConnectionError:
            return
        else:
            assert BOUND_S[view] > 0
            assert cells_of(response, view, 0) in self._possible(view, user)
        finally:
            self.repo.cache.runtime.engine.refresher.drain()
            source.load = load  # type: ignore[method-assign]

    @invariant()
    def books_are_right(self) -> None:
        """The memory tier's accounts and the counters agree with what it holds."""
        engine = self.repo.cache.runtime.engine
        engine.memory.check()
        stats = self.repo.cache.stats()
        assert stats.entries == sum(group.entries for group in stats.groups.values())
        assert stats.bytes == sum(group.bytes for group in stats.groups.values())
        assert len(engine.flights) == 0


@contextmanager
def oracle_repo(folder: Path, online: dict[str, Any]) -> Iterator[Repo]:
    """A repo with one view for each kind of policy."""
    repo = Repo(
        folder / "oracle",
        online,
        project=f"oracle{next(_fresh_ids)}",
        ttl_map={},
        settings={"preload": {"folder": str(folder / "preload"), "rows": True}},
    )
    views = [
        repo.view(name, schema, tags=POLICIES[name].tags()) for name, schema in SCHEMAS.items()
    ]
    repo.apply(USER, *views)
    yield repo


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_random_operations(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    """No answer of the cached store is one that the bare store could not have given in time."""
    with oracle_repo(tmp_path, settings_of(request, kind)) as repo:
        machine = type("Machine", (Oracle,), {"repo": repo})
        Oracle.operations = Oracle.kept = 0
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=STEPS,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                print_blob=True,
            ),
        )
        print(f"\n{kind}: {Oracle.operations} operations, {Oracle.kept} rows outlived a restart")
        assert Oracle.operations > EXAMPLES * STEPS / 4
