"""Compute on miss: what a loader returns is what a read answers, and nothing else is."""

from __future__ import annotations

import gc
import random
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from feast.protos.feast.serving.ServingService_pb2 import FieldStatus
from feast.types import Array, Bool, Bytes, Float32, Float64, Int32, Int64, String, UnixTimestamp

from hotplate import LoaderError

from ..stores import MERCHANT, USER, Repo
from . import loader_functions
from .operational import MERCHANT_RISK, PAIR, Database, postgres_database, sqlite_database

FUNCTIONS = loader_functions.__name__
RISK = ["merchant_risk:n", "merchant_risk:mean", "merchant_risk:risk", "merchant_risk:prepaid"]
RISK_SCHEMA = {"n": Int64, "mean": Float64, "risk": Float64, "prepaid": Int64}


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An operational database with some payments."""
    if request.param == "sqlite":
        made = sqlite_database(tmp_path)
    else:
        made = postgres_database(request.getfixturevalue("postgres"))
    made.fill()
    yield made
    made.engine.dispose()
    gc.collect()  # closes the connections of the repos' loaders before the server stops


@pytest.fixture(autouse=True)
def _fresh_functions() -> None:
    loader_functions.reset()


def merchants(tmp_path: Path, database: Database, **settings: Any) -> Repo:
    """A view of merchants that three joins and an aggregation compute."""
    loader = {"sql": database.sql(MERCHANT_RISK), "url": database.url, **settings}
    repo = Repo(
        tmp_path / "repo", {"type": "sqlite"}, settings={"loaders": {"merchant_risk": loader}}
    )
    repo.apply(MERCHANT, repo.view("merchant_risk", RISK_SCHEMA, [MERCHANT]))
    return repo


def users(tmp_path: Path, schema: dict[str, Any] | None = None, **loader: Any) -> Repo:
    """A view of users that a function computes."""
    settings = {"function": f"{FUNCTIONS}:given", **loader}
    repo = Repo(tmp_path / "repo", {"type": "sqlite"}, settings={"loaders": {"v": settings}})
    repo.apply(USER, repo.view("v", schema or {"n": Int64}))
    return repo


def ask(repo: Repo, *user_ids: int) -> Any:
    rows = [{"user_id": user} for user in user_ids]
    return repo.hot.get_online_features(["v:n"], rows).to_dict()["n"]


def test_joins_and_an_aggregation_answer_a_read(tmp_path: Path, database: Database) -> None:
    """One query for all entities of a request; a second read asks nothing."""
    repo = merchants(tmp_path, database)
    rows = [{"merchant_id": name} for name in ("a", "b", "idle", "a", "nobody")]
    with database.watch() as statements:
        for _ in range(2):
            got = repo.hot.get_online_features(RISK, rows).to_dict()
            assert got == {
                "merchant_id": ["a", "b", "idle", "a", "nobody"],
                "n": [2, 1, None, 2, None],
                "mean": [15.0, 5.0, None, 15.0, None],
                "risk": [0.1, 0.9, None, 0.1, None],
                "prepaid": [1, 1, None, 1, None],
            }
    assert len(statements) == 1
    stats = repo.cache.stats()
    (loader,) = stats.loaders.values()
    assert (loader.queries, loader.entities, loader.found) == (1, 4, 2)
    assert stats.groups["merchant_risk"].loads == 4
    assert stats.groups["merchant_risk"].hits_absent == 2


def test_the_wrapped_store_is_not_asked_for_a_view_with_a_loader(
    tmp_path: Path, database: Database
) -> None:
    """Views of both kinds in one request: each is asked of its own truth."""
    repo = merchants(tmp_path, database)
    repo.apply(MERCHANT, repo.view("stored", {"size": Int64}, [MERCHANT]))
    repo.write("stored", merchant_id=["a"], size=[3])
    repo.write("merchant_risk", merchant_id=["a"], n=[99], mean=[9.0], risk=[9.0], prepaid=[9])
    store = repo.cache.runtime.wrapped.store()
    asked: list[str] = []
    read = store.online_read

    def noting(config: Any, table: Any, *more: Any) -> Any:
        asked.append(table.name)
        return read(config, table, *more)

    store.online_read = noting  # type: ignore[method-assign]
    rows = [{"merchant_id": "a"}]
    got = repo.hot.get_online_features([*RISK, "stored:size"], rows).to_dict()
    assert (got["n"], got["size"]) == ([2], [3])
    assert asked == ["stored"]


def test_what_a_loader_does_not_return_is_not_found(tmp_path: Path, database: Database) -> None:
    """An absent entity is NOT_FOUND, whatever store is wrapped; a null feature is another thing."""
    repo = merchants(tmp_path, database)
    database.run("INSERT INTO {s}merchants VALUES ('unpriced', 1)")
    database.pay(1, "unpriced", None)
    rows = [{"merchant_id": "unpriced"}, {"merchant_id": "nobody"}]
    for _ in range(2):
        proto = repo.hot.get_online_features(RISK, rows).proto
        names = list(proto.metadata.feature_names.val)
        n, mean = (proto.results[names.index(name)] for name in ("n", "mean"))
        assert list(n.statuses) == [FieldStatus.PRESENT, FieldStatus.NOT_FOUND]
        assert mean.statuses[1] == FieldStatus.NOT_FOUND
        assert mean.statuses[0] != FieldStatus.NOT_FOUND
        assert mean.values[0].WhichOneof("val") is None
        assert n.event_timestamps[0].seconds == repo.clock.wall_ns() // 1_000_000_000
    negative = repo.cache.stats().groups["merchant_risk"]
    assert negative.hits_absent == 1


def test_composite_keys_are_bound_together(tmp_path: Path, database: Database) -> None:
    """The parameter's name says the order; no pair is mistaken for another."""
    settings = {"sql": database.sql(PAIR), "url": database.url}
    repo = Repo(tmp_path / "repo", {"type": "sqlite"}, settings={"loaders": {"pair": settings}})
    repo.apply(USER, MERCHANT, repo.view("pair", {"n": Int64}, [USER, MERCHANT]))
    database.pay(2, "a", 1.0)
    pairs = [(1, "a"), (2, "a"), (1, "b"), (2, "b"), (2, "a")]
    rows = [{"user_id": user, "merchant_id": merchant} for user, merchant in pairs]
    with database.watch() as statements:
        for _ in range(2):
            got = repo.hot.get_online_features(["pair:n"], rows).to_dict()
            assert got["n"] == [1, 2, None, 1, 2]
    assert len(statements) == 1


def test_big_batches_are_cut(tmp_path: Path, database: Database) -> None:
    """More entities than `max_batch`: several queries, one answer in order."""
    repo = merchants(tmp_path, database, max_batch=3)
    names = ["a", *(f"no{i}" for i in range(7)), "b"]
    rows = [{"merchant_id": name} for name in names]
    got = repo.hot.get_online_features(RISK, rows).to_dict()
    assert got["n"] == [2, *[None] * 7, 1]
    assert repo.cache.stats().loaders["merchant_risk"].queries == 3


def test_a_batch_larger_than_a_database_takes(tmp_path: Path, database: Database) -> None:
    """35,000 entities of one request: within the parameters of SQLite and of Postgres."""
    repo = merchants(tmp_path, database, max_batch=10_000, timeout="60s")
    rows = {"merchant_id": ["a", *(f"no{i}" for i in range(34_999))]}
    got = repo.hot.get_online_features(["merchant_risk:n"], rows).to_dict()["n"]
    assert got[0] == 2
    assert set(got[1:]) == {None}


def test_entities_are_bound_never_written_into_the_text(tmp_path: Path, database: Database) -> None:
    """What looks like SQL is an entity like any other."""
    repo = merchants(tmp_path, database)
    odd = ["x') OR ('1'='1", "a'; DROP TABLE payments; --", ":merchant_id", "%s", "100%", "ä€"]
    for name in odd:
        database.run("INSERT INTO {s}merchants VALUES (:m, 1)", m=name[:20])
    got = repo.hot.get_online_features(
        ["merchant_risk:n"], [{"merchant_id": name} for name in [*odd, "a"]]
    ).to_dict()
    assert got["n"] == [None] * len(odd) + [2]


def test_ttl_invalidation_and_a_push_reach_the_loader(tmp_path: Path, database: Database) -> None:
    """The same freshness as any view: kept for its ttl, forgotten on invalidate and on a push."""
    repo = merchants(tmp_path, database)

    def read() -> int:
        rows = [{"merchant_id": "a"}]
        return int(repo.hot.get_online_features(RISK, rows).to_dict()["n"][0])

    assert read() == 2
    database.pay(1, "a", 1.0)
    assert read() == 2
    repo.cache.invalidate("merchant_risk", {"merchant_id": "a"})
    assert read() == 3
    database.pay(1, "a", 1.0)
    repo.clock.advance(30.1)
    assert read() == 4
    database.pay(1, "a", 1.0)
    repo.write(
        "merchant_risk", repo.hot, merchant_id=["a"], n=[99], mean=[1.0], risk=[1.0], prepaid=[1]
    )
    assert read() == 5  # what was pushed made it forget; the loader is the truth


def test_a_write_to_a_view_with_a_loader_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is stored, reads do not see it: worth a warning, not one a write."""
    repo = users(tmp_path)
    loader_functions.answer = [{"user_id": 1, "n": 5}]
    for _ in range(3):
        repo.write("v", repo.hot, user_id=[1], n=[9])
    assert ask(repo, 1) == [5]
    assert repo.bare.get_online_features(["v:n"], [{"user_id": 1}]).to_dict()["n"] == [9]
    assert caplog.text.count("feature view v has a loader") == 1


def test_event_timestamps_come_from_a_column(tmp_path: Path, database: Database) -> None:
    """`event_timestamp_column`: a timestamp or text; the load's instant where it is null."""
    sql = """
        SELECT card AS user_id, count(*) AS n, max(paid_at) AS paid_at
        FROM {s}payments WHERE card IN :user_id GROUP BY card
    """
    loader = {
        "sql": database.sql(sql),
        "url": database.url,
        "event_timestamp_column": "paid_at",
    }
    repo = Repo(tmp_path / "repo", {"type": "sqlite"}, settings={"loaders": {"v": loader}})
    repo.apply(USER, repo.view("v", {"n": Int64}))
    database.run("UPDATE {s}payments SET paid_at = '2025-03-01T10:00:00+02:00' WHERE card = 1")
    rows = [{"user_id": 1}, {"user_id": 2}]
    for _ in range(2):
        got = repo.hot.get_online_features(["v:n"], rows).to_dict(include_event_timestamps=True)
        moment = int(datetime(2025, 3, 1, 8, tzinfo=UTC).timestamp())
        assert got["n__ts"] == [moment, repo.clock.wall_ns() // 1_000_000_000]


TYPED = {
    "i32": Int32, "i64": Int64, "f32": Float32, "f64": Float64, "text": String, "raw": Bytes,
    "flag": Bool, "at": UnixTimestamp, "many": Array(Int64),
}  # fmt: skip
MOMENT = datetime(2026, 5, 1, tzinfo=UTC)
NATURAL = {
    "i32": 1, "i64": 2, "f32": 0.5, "f64": 1.5, "text": "x", "raw": b"y",
    "flag": True, "at": MOMENT, "many": [1, 2],
}  # fmt: skip
# what databases and numpy make of the same values
UNNATURAL = {
    "i32": np.int64(1), "i64": Decimal("2"), "f32": np.float32(0.5), "f64": Decimal("1.5"),
    "text": "x", "raw": memoryview(b"y"), "flag": 1, "at": "2026-05-01 00:00:00",
    "many": np.array([1, 2]),
}  # fmt: skip


@pytest.mark.parametrize("row", [NATURAL, UNNATURAL], ids=["natural", "unnatural"])
def test_every_type_arrives_as_if_it_had_been_written(tmp_path: Path, row: Any) -> None:
    """The same answer as the bare store's, after the same row was written into it; nulls too."""
    repo = users(tmp_path, TYPED)
    nulls = dict.fromkeys(TYPED)
    loader_functions.answer = [{"user_id": 1, **row}, {"user_id": 2, **nulls}]
    names = [f"v:{name}" for name in TYPED]
    repo.write("v", user_id=[1], **{name: [value] for name, value in NATURAL.items()})
    rows = [{"user_id": 1}, {"user_id": 2}]
    expected = repo.bare.get_online_features(names, rows).to_dict()
    for _ in range(2):
        assert repo.hot.get_online_features(names, rows).to_dict() == expected


@pytest.mark.parametrize("shape", ["double", "as_columns", "as_frame"])
def test_a_function_returns_rows_columns_or_a_frame(tmp_path: Path, shape: str) -> None:
    """All three are taken."""
    repo = users(tmp_path, function=f"{FUNCTIONS}:{shape}")
    assert ask(repo, 3, 1, 3) == [6, 2, 6]


def test_a_function_gets_join_keys_and_values(tmp_path: Path) -> None:
    """A dict of lists, each entity once, the join keys under their own names."""
    repo = users(tmp_path, function=f"{FUNCTIONS}:double")
    assert ask(repo, 4, -1, 4) == [8, None, 8]
    assert [sorted(call["user_id"]) for call in loader_functions.calls] == [[-1, 4]]


MISSING = pd.DataFrame({"user_id": [1, 2], "n": [5, None]})  # pandas made it a column of floats
ODD: dict[str, tuple[Any, list[str]]] = {
    "extra_row": ([{"user_id": 1, "n": 1}, {"user_id": 9, "n": 1}], ["'user_id' was not asked"]),
    "null_entity": ([{"user_id": None, "n": 1}], ["'user_id' was not asked for", "NoneType"]),
    "text_entity": ([{"user_id": "1", "n": 1}], ["was not asked for (str)", "exactly as"]),
    "duplicate": ([{"user_id": 1, "n": 1}] * 2, ["more than one row", "GROUP BY user_id"]),
    "no_join_key": ([{"n": 1}], ["no column 'user_id' (join key)"]),
    "no_feature": ([{"user_id": 1, "m": 1}], ["no column 'n' (feature)", "it returned user_id, m"]),
    "folded_name": ([{"user_id": 1, "N": 1}], ["It returned 'N'", 'Write AS "n"']),
    "ragged_rows": ([{"user_id": 1, "n": 1}, {"user_id": 2}], ["lack 'n'", "None where there is"]),
    "ragged_columns": ({"user_id": [1, 2], "n": [1]}, ["differ in length"]),
    "nothing": (None, ["it returned NoneType", "list of dicts"]),
    "a_number": (7, ["it returned int"]),
    "text": ([{"user_id": 1, "n": "many"}], ["column 'n'", "str", "INT64", "CAST"]),
    "fraction": ([{"user_id": 1, "n": 1.5}], ["column 'n'", "float", "no whole number"]),
    "boolean": ([{"user_id": 1, "n": True}], ["column 'n'", "bool", "a boolean is no number"]),
    "too_large": ([{"user_id": 1, "n": 1 << 63}], ["column 'n'", "out of range"]),
    "infinite": ([{"user_id": 1, "n": float("inf")}], ["column 'n'", "float"]),
    "a_list": ([{"user_id": 1, "n": [1]}], ["column 'n'", "list"]),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_what_cannot_be_a_row_is_refused_and_not_kept(tmp_path: Path, name: str) -> None:
    """The error names view, column and fix; the next read asks again, and is answered."""
    repo = users(tmp_path)
    loader_functions.answer, texts = ODD[name]
    with pytest.raises(LoaderError) as caught:
        ask(repo, 1, 2)
    for expected in ["feature view 'v'", *texts]:
        assert expected in str(caught.value)
    loader_functions.answer = MISSING
    assert ask(repo, 1, 2) == [5, None]
    assert repo.cache.stats().loaders["v"].errors == 1


def test_two_columns_of_one_name_are_refused(tmp_path: Path, database: Database) -> None:
    """`SELECT *` over a join: which of the two is meant cannot be known."""
    sql = """SELECT m.merchant_id, p.amount AS n, p.card AS n FROM {s}merchants m
             JOIN {s}payments p ON p.merchant = m.merchant_id WHERE m.merchant_id IN :merchant_id"""
    repo = merchants(tmp_path, database, sql=database.sql(sql))
    with pytest.raises(LoaderError, match="two columns called 'n'"):
        repo.hot.get_online_features(RISK, [{"merchant_id": "b"}])


def test_a_query_that_forgets_its_entities_cannot_fill_memory(
    tmp_path: Path, database: Database
) -> None:
    """Rows of entities that nobody asked for are refused."""
    sql = """SELECT merchant_id, 1 AS n, 1.0 AS mean, 1.0 AS risk, 1 AS prepaid
             FROM {s}merchants WHERE merchant_id IN :merchant_id OR 1 = 1"""
    repo = merchants(tmp_path, database, sql=database.sql(sql))
    with pytest.raises(LoaderError, match="'merchant_id' was not asked for"):
        repo.hot.get_online_features(RISK, [{"merchant_id": "b"}])


def test_the_databases_own_error_reaches_the_caller(tmp_path: Path, database: Database) -> None:
    """Unchanged, with a note that names the view; a later read is answered."""
    repo = merchants(tmp_path, database)
    database.run("ALTER TABLE {s}cards RENAME TO gone")
    for _ in range(2):
        with pytest.raises(Exception, match="cards") as caught:
            repo.hot.get_online_features(RISK, [{"merchant_id": "a"}])
        assert caught.value.__notes__ == ["raised by the loader of feature view 'merchant_risk'"]
        assert "parameters: " not in str(caught.value)
    database.run("ALTER TABLE {s}gone RENAME TO cards")
    got = repo.hot.get_online_features(RISK, [{"merchant_id": "a"}]).to_dict()
    assert got["n"] == [2]
    assert repo.cache.stats().loaders["merchant_risk"].errors == 2


def test_a_loader_named_as_a_group_serves_each_of_its_views(tmp_path: Path) -> None:
    """The view's own name goes before its group's."""
    loaders = {
        "people": {"function": f"{FUNCTIONS}:double"},
        "w": {"function": f"{FUNCTIONS}:given"},
    }
    repo = Repo(tmp_path / "repo", {"type": "sqlite"}, settings={"loaders": loaders})
    tags = {"hotplate.group": "people"}
    repo.apply(USER, *(repo.view(name, {"n": Int64}, tags=tags) for name in ("v", "w")))
    loader_functions.answer = [{"user_id": 3, "n": 100}]
    got = repo.hot.get_online_features(["v:n", "w:n"], [{"user_id": 3}], full_feature_names=True)
    assert got.to_dict() == {"user_id": [3], "v__n": [6], "w__n": [100]}
    assert repo.cache.loaders() == {"people": {"v": "function", "w": "function"}}


def test_a_loader_that_fails_costs_only_its_own_views(tmp_path: Path) -> None:
    """In one request: the loader's last good rows, the store's new ones; and the other way."""
    ttl_map = {
        "default": {"ttl": "5s", "jitter": 0},
        "v": {"on_source_error": "last_good 60s"},
    }
    loaders = {"v": {"function": f"{FUNCTIONS}:given"}}
    repo = Repo(
        tmp_path / "repo", {"type": "sqlite"}, ttl_map=ttl_map, settings={"loaders": loaders}
    )
    repo.apply(USER, repo.view("v", {"n": Int64}), repo.view("w", {"m": Int64}))
    loader_functions.answer = [{"user_id": 1, "n": 5}]
    repo.write("w", user_id=[1], m=[6])

    def both() -> tuple[Any, Any]:
        got = repo.hot.get_online_features(["v:n", "w:m"], [{"user_id": 1}]).to_dict()
        return got["n"][0], got["m"][0]

    assert both() == (5, 6)
    repo.clock.advance(6)
    loader_functions.answer = ConnectionError("away")
    repo.write("w", user_id=[1], m=[7], event_time=[datetime(2026, 2, 1, tzinfo=UTC)])
    assert both() == (5, 7)
    stats = repo.cache.stats().groups
    assert (stats["v"].load_errors, stats["w"].load_errors) == (1, 0)
    assert (stats["v"].last_good, stats["w"].last_good) == (1, 0)
    repo.clock.advance(6)
    loader_functions.answer = [{"user_id": 1, "n": 8}]
    store = repo.cache.runtime.wrapped.store()
    read = store.online_read

    def failing(*arguments: Any) -> Any:
        raise ConnectionError("the store is away")

    store.online_read = failing  # type: ignore[method-assign]
    with pytest.raises(ConnectionError, match="the store is away"):
        both()
    store.online_read = read  # type: ignore[method-assign]
    calls = len(loader_functions.calls)
    assert both() == (8, 7)
    assert len(loader_functions.calls) == calls  # what the loader said was kept


@pytest.mark.parametrize("seed", range(6))
def test_random_reads_and_changes_against_a_plain_dict(
    tmp_path: Path, database: Database, seed: int
) -> None:
    """Every answer was true within the ttl, and since the entity's last invalidation."""
    sql = "SELECT id AS user_id, risk AS n FROM {s}categories WHERE id IN :user_id"
    loader = {"sql": database.sql(sql), "url": database.url, "max_batch": 4}
    repo = Repo(
        tmp_path / "repo",
        {"type": "sqlite"},
        ttl_map={"default": {"ttl": "10s", "negative_ttl": "10s", "jitter": 0}},
        settings={"loaders": {"v": loader}},
    )
    repo.apply(USER, repo.view("v", {"n": Float64}))
    database.run("DELETE FROM {s}categories")
    rng = random.Random(seed)
    changed: dict[int, list[tuple[float, float | None]]] = defaultdict(lambda: [(-1.0, None)])
    forgotten: dict[int, float] = {}
    now = 0.0
    for step in range(120):
        user = rng.randrange(12)
        kind = rng.random()
        if kind < 0.3:
            value = None if rng.random() < 0.3 else float(step)
            database.run("DELETE FROM {s}categories WHERE id = :id", id=user)
            if value is not None:
                database.run("INSERT INTO {s}categories VALUES (:id, :v)", id=user, v=value)
            changed[user].append((now, value))
        elif kind < 0.4:
            repo.cache.invalidate("v", {"user_id": user})
            forgotten[user] = now
        elif kind < 0.6:
            seconds = rng.choice((0.5, 4.0, 11.0))
            repo.clock.advance(seconds)
            now += seconds
        else:
            wanted = rng.choices(range(12), k=rng.randrange(1, 9))
            for asked, got in zip(wanted, ask(repo, *wanted), strict=True):
                since = max(now - 10.0, forgotten.get(asked, -1.0))
                told = changed[asked]
                # true at `since`, or made true after it; several changes may share one instant
                first = max(i for i, (at, _) in enumerate(told) if at < since or i == 0)
                assert got in [value for _, value in told[first:]], (step, asked)
