"""Loaders in feature_store.yaml: good ones work, bad ones are refused readably and safely."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from feast import FeatureStore, RepoConfig
from feast.types import Int64

from hotplate import ConfigError, LoaderError, of
from hotplate.cli import main
from hotplate.embedded import EmbeddedServer
from hotplate.errors import HotplateError
from hotplate.loaders import read_loaders

from ..stores import CACHED, MERCHANT, USER, Repo
from . import loader_functions
from .operational import sqlite_database

SECRET = "hunter2"
SQL = "SELECT user_id, n FROM t WHERE user_id IN :user_id"
URL = f"postgresql+psycopg://reader:{SECRET}@127.0.0.1:1/shop"
FUNCTION = f"{loader_functions.__name__}:double"

BAD_SETTINGS: dict[str, tuple[Any, list[str]]] = {
    "no_mapping": (SQL, ["must hold the loader's settings", "{sql: ..., url: ...}"]),
    "neither": ({"url": URL}, ["either 'sql' or 'function'"]),
    "both": ({"sql": SQL, "url": URL, "function": FUNCTION}, ["either 'sql' or 'function'"]),
    "no_url": ({"sql": SQL}, [".url: must be text"]),
    "empty_sql": ({"sql": " ", "url": URL}, [".sql: must be text"]),
    "typo": ({"sql": SQL, "url": URL, "time_out": "1s"}, ["'time_out'", "Did you mean 'timeout'?"]),
    "password": ({"sql": SQL, "url": URL, "password": SECRET}, ["unknown setting 'password'"]),
    "url_of_a_function": ({"function": FUNCTION, "url": URL}, ["unknown setting 'url'"]),
    "path": ({"function": "load_account"}, [".function: is no import path", "package.module:"]),
    "code": ({"function": "os:system('ls')"}, [".function: is no import path"]),
    "no_unit": ({"function": FUNCTION, "timeout": 5}, [".timeout: 5 has no unit"]),
    "no_limit": ({"function": FUNCTION, "timeout": "none"}, [".timeout: a caller must not wait"]),
    "no_time": ({"function": FUNCTION, "timeout": "0s"}, [".timeout: a caller must not wait"]),
    "no_turns": ({"function": FUNCTION, "max_concurrent": 0}, ["whole number from 1 to 1,000"]),
    "turns": ({"function": FUNCTION, "max_concurrent": True}, ["whole number from 1 to 1,000"]),
    "batch": ({"function": FUNCTION, "max_batch": 10**6}, ["whole number from 1 to 10,000"]),
    "write_back": ({"function": FUNCTION, "write_back": "yes"}, [".write_back: must be true or"]),
    "column": ({"function": FUNCTION, "event_timestamp_column": 7}, ["event_timestamp_column: "]),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_SETTINGS)
def test_bad_settings_are_refused(name: str) -> None:
    """The message names the loader, the setting and the fix, and shows no secret."""
    settings, texts = BAD_SETTINGS[name]
    with pytest.raises(ConfigError) as caught:
        config(loaders={"risk": settings})
    for expected in ["online_store.loaders['risk']", *texts]:
        assert expected in str(caught.value)
    assert SECRET not in str(caught.value)


def test_wildcards_are_refused() -> None:
    """Which of two wildcards would load a view could not be said."""
    with pytest.raises(ConfigError, match="takes no wildcards"):
        read_loaders({"user_*": {"function": FUNCTION}})


def config(**online: Any) -> Any:
    return RepoConfig(
        project="shop",
        provider="local",
        registry="registry.db",
        online_store={"type": CACHED, "store": {"type": "sqlite"}, **online},
        offline_store={"type": "file"},
        entity_key_serialization_version=3,
    ).online_store


def repo_of(tmp_path: Path, loaders: dict[str, Any], online: Any = None) -> Repo:
    return Repo(tmp_path / "repo", online or {"type": "sqlite"}, settings={"loaders": loaders})


BAD_SQL: dict[str, tuple[str, list[str]]] = {
    "no_parameter": ("SELECT user_id, n FROM t", ["binds no parameter", "IN :user_id"]),
    "other_name": (SQL.replace(":user_id", ":id"), ["binds :id", "IN :user_id"]),
    "one_too_many": (f"{SQL} AND n > :least", ["binds :least, :user_id", "written \\:"]),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_SQL)
def test_sql_that_does_not_bind_its_entities_is_refused_at_apply(tmp_path: Path, name: str) -> None:
    """Before anything is written, and again at a read where it was applied elsewhere."""
    sql, texts = BAD_SQL[name]
    repo = repo_of(tmp_path, {"v": {"sql": sql, "url": URL}})
    with pytest.raises(LoaderError) as caught:
        repo.apply(USER, repo.view("v", {"n": Int64}))
    for expected in ["feature view 'v'", *texts]:
        assert expected in str(caught.value)
    repo.bare.apply([USER, repo.view("v", {"n": Int64})])
    with pytest.raises(LoaderError, match="binds"):
        repo.hot.get_online_features(["v:n"], [{"user_id": 1}])


def test_composite_keys_want_one_parameter_in_a_stated_order(tmp_path: Path) -> None:
    """Two parameters would ask for pairs that nobody asked for."""
    sql = "SELECT * FROM t WHERE user_id IN :user_id AND merchant_id IN :merchant_id"
    repo = repo_of(tmp_path, {"v": {"sql": sql, "url": URL}})
    fix = "WHERE (merchant_id, user_id) IN :merchant_id__user_id, the parameter's name in the order"
    with pytest.raises(LoaderError) as caught:
        repo.apply(USER, MERCHANT, repo.view("v", {"n": Int64}, [USER, MERCHANT]))
    assert fix in str(caught.value)


def test_a_view_without_entities_is_refused(tmp_path: Path) -> None:
    """There is nothing to load by."""
    repo = repo_of(tmp_path, {"v": {"sql": "SELECT 1 AS n", "url": URL}})
    with pytest.raises(LoaderError, match="has no entity"):
        repo.apply(repo.view("v", {"n": Int64}, []))


def test_write_back_is_refused_where_it_would_be_heard_as_a_change(
    tmp_path: Path, redis: EmbeddedServer
) -> None:
    """An event-coherent group around Redis would forget each row as it is loaded."""
    online = {"type": "redis", "connection_string": redis.connection_string}
    repo = repo_of(tmp_path, {"v": {"function": FUNCTION, "write_back": True}}, online)
    tags = {"hotplate.ttl": "5s", "hotplate.coherence": "event"}
    with pytest.raises(LoaderError, match="every load would be heard as a change"):
        repo.apply(USER, repo.view("v", {"n": Int64}, tags=tags))
    repo.apply(USER, repo.view("v", {"n": Int64}))


def test_an_unknown_name_is_refused_at_apply(tmp_path: Path) -> None:
    """With the nearest view or group; a loader of a view applied before is fine."""
    repo = repo_of(tmp_path, {"merchant_riks": {"function": FUNCTION}})
    view = repo.view("merchant_risk", {"n": Int64})
    with pytest.raises(ConfigError, match=r"'merchant_riks'.*Did you mean 'merchant_risk'\?"):
        repo.hot.apply([USER, view], partial=False)
    repo.bare.apply([USER, view])
    with pytest.raises(ConfigError, match="names no feature view and no group"):
        of(repo.open_hot()).policies()
    named = repo.open_hot(loaders={"merchant_risk": {"function": FUNCTION}})
    named.apply([USER, repo.view("another", {"n": Int64})], partial=False)


def test_a_store_that_answers_whole_requests_takes_no_loaders(tmp_path: Path) -> None:
    """Feast's remote store: its server would be asked, and the loader never."""
    remote = {"type": "remote", "path": "http://127.0.0.1:1"}
    repo = repo_of(tmp_path, {"v": {"function": FUNCTION}}, remote)
    repo.bare.registry.apply_entity(USER, "shop")
    with pytest.raises(ConfigError, match="answers whole requests by itself"):
        repo.hot.get_online_features(["v:n"], [{"user_id": 1}])


@pytest.mark.parametrize(
    "function", ["no_such_module:load", f"{FUNCTION}s", f"{FUNCTION[:-6]}not_callable"]
)
def test_a_function_that_is_not_there(tmp_path: Path, function: str) -> None:
    """Said at the first read: where a repo is applied, serving code need not be installed."""
    repo = repo_of(tmp_path, {"v": {"function": function}})
    repo.apply(USER, repo.view("v", {"n": Int64}))
    with pytest.raises(LoaderError, match=r"cannot be imported|is no function"):
        repo.hot.get_online_features(["v:n"], [{"user_id": 1}])


BAD_URLS = {
    "no_url_at_all": (SECRET, "none that SQLAlchemy can read"),
    "bad_port": (f"postgresql+psycopg://u:p@h:{SECRET}/d", "none that SQLAlchemy can read"),
    "bare_at": (f"postgresql+psycopg://u:p@{SECRET}@127.0.0.1:1/d", "must be written %40"),
    "no_driver": (f"nosuchdb://u:{SECRET}@127.0.0.1/d", "driver cannot be loaded"),
    "asynchronous": (f"sqlite+aiosqlite:///{SECRET}.db", "is asynchronous"),
    "no_variable": ("postgresql+psycopg://u:${HOTPLATE_NO_SUCH}@h/d", "HOTPLATE_NO_SUCH, which"),
    "unreachable": (URL, "onnection"),
    "wrong_option": (f"{URL}?password={SECRET}&nosuchoption=1", "option"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_URLS)
def test_no_password_in_an_error_a_log_or_a_repr(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is wrong with a url, in the error and in all it was raised from."""
    url, text = BAD_URLS[name]
    caplog.set_level(logging.DEBUG)
    repo = repo_of(tmp_path, {"v": {"sql": SQL, "url": url}})
    repo.apply(USER, repo.view("v", {"n": Int64}))
    with pytest.raises(Exception, match=text) as caught:
        repo.hot.get_online_features(["v:n"], [{"user_id": 1}])
    loaders = repo.cache.runtime.loaders
    loader = loaders.of(repo.hot.get_feature_view("v"))
    assert loader is not None
    shown = [repr(each) for each in (loader, loader.settings, loader._query, repo.cache.stats())]
    shown += [repr(repo.hot.config.online_store), caplog.text]
    error: BaseException | None = caught.value
    while error is not None:
        shown += [str(error), repr(error), *getattr(error, "__notes__", ())]
        error = error.__cause__ or error.__context__
    assert SECRET not in "".join(shown)


def test_environment_variables_fill_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a file Feast fills them in; in settings made in Python, the loader does."""
    database = sqlite_database(tmp_path)
    database.fill()
    sql = "SELECT id AS user_id, 7 AS n FROM categories WHERE id IN :user_id"
    monkeypatch.setenv("SHOP_DB", str(tmp_path / "operational.db"))
    loader = {"sql": sql, "url": "sqlite:///${SHOP_DB}"}
    repo = repo_of(tmp_path, {"v": loader})
    repo.apply(USER, repo.view("v", {"n": Int64}))
    written = {
        "project": "shop",
        "provider": "local",
        "registry": str(repo.folder / "registry.db"),
        "offline_store": {"type": "file"},
        "entity_key_serialization_version": 3,
        "online_store": {
            "type": CACHED,
            "store": {"type": "sqlite", "path": str(repo.folder / "online.db")},
            "ttl_map": {"default": "5s"},
            "loaders": {"v": loader},
        },
    }
    (repo.folder / "feature_store.yaml").write_text(yaml.safe_dump(written))
    for store in (repo.hot, FeatureStore(repo_path=str(repo.folder))):
        got = store.get_online_features(["v:n"], [{"user_id": 1}, {"user_id": 9}]).to_dict()
        assert got["n"] == [7, None]
    database.engine.dispose()

    shown = CliRunner().invoke(main, ["policy", "--long", "--chdir", str(repo.folder)])
    assert "sql (feature view v)" in shown.output
    assert "operational.db" not in shown.output
    as_json = CliRunner().invoke(main, ["policy", "--json", "--chdir", str(repo.folder)])
    assert json.loads(as_json.output)["v"]["loaders"] == {"v": "sql"}


def test_errors_of_loaders_are_hotplates_own() -> None:
    """One base to catch; a timeout is a TimeoutError as well."""
    from hotplate import LoaderTimeoutError

    assert issubclass(LoaderTimeoutError, (LoaderError, TimeoutError))
    assert issubclass(LoaderError, HotplateError)
