"""Warming a deployment: from what was logged to rows that are there when they are asked for."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner, Result

import hotplate
from hotplate.cli import main
from hotplate.embedded import EmbeddedServer
from hotplate.operations.warm import Warming, WarmPlan, WarmState, plan_of
from hotplate.serving.rehearsal import Rehearsal
from hotplate.warming.selection import SelectionSpec, select
from hotplate.warming.traffic import key_of
from hotplate.warming.warmer import WarmingError, WarmingRate

from ..stores import CACHED, Repo, await_
from .conftest import FEATURES
from .logs import Row, write_log
from .test_traffic import ask

FAST = WarmingRate(1_000_000, ramp_s=0)


def at_work(repo: Repo) -> None:
    """Users 0 to 19 are read, the first ones most often; of merchants one."""
    for user in range(20):
        for _ in range(20 - user):
            ask(repo, (user, "m1"))
    traffic = hotplate.of(repo.hot).runtime.traffic
    assert traffic is not None
    traffic.flush()


def plan(repo: Repo, store: Any = None, **said: Any) -> Any:
    hot = hotplate.of(store or repo.hot)
    groups = said.pop("groups", ())
    rehearsal = hot.rehearsal(groups)
    traffic = hotplate.of(repo.hot).runtime.traffic
    assert traffic is not None
    chosen = select(traffic.settings.folder, SelectionSpec(_soon(repo)))
    return rehearsal, plan_of(rehearsal, chosen, repo.project, **said)


def _soon(repo: Repo) -> Any:
    wall_s = repo.clock.wall_ns() / 1e9
    return datetime.fromtimestamp(wall_s, UTC) + timedelta(seconds=1)


def loads(store: Any) -> dict[str, int]:
    return {name: one.loads for name, one in hotplate.of(store).stats().groups.items()}


def test_what_is_warmed_is_there_when_it_is_asked_for(logged: Callable[..., Repo]) -> None:
    """In a cache that was cold: the chosen ones are hits, the others are not; nothing is logged."""
    repo = logged()
    at_work(repo)
    cold = repo.open_hot()
    rehearsal, made = plan(repo, cold, share=None, top=5)
    assert made.keys["user_id"] == [(user,) for user in range(5)]
    assert made.keys["merchant_id"] == [("m1",)]
    assert made.views == {"user_id": ("counts", "profile"), "merchant_id": ("shops",)}
    assert made.reads == 5 * 2 + 1
    steps = list(Warming(rehearsal, FAST).run(made))
    assert steps[-1].entities == 6
    before = loads(cold)
    assert before == {"counts": 5, "profile": 5, "shops": 1}
    for user in range(5):
        entities = {"user_id": [user], "merchant_id": ["m1"]}
        assert cold.get_online_features(FEATURES, entities).to_dict()["age"] == [user]
    assert loads(cold) == before
    cold.get_online_features(FEATURES, {"user_id": [6], "merchant_id": ["m1"]})
    assert loads(cold)["profile"] == 6
    log = hotplate.of(cold).runtime.traffic
    assert log is not None
    log.flush()
    assert log.stats().logged == 6, "what nobody asked for is no traffic"
    list(Warming(rehearsal, FAST).run(made))
    assert loads(cold)["profile"] == 6, "what is there is not read again"
    group = hotplate.of(cold).stats().groups["profile"]
    assert (group.hits, group.reads) == (5, 6), "the hit rate is that of who asks"


def test_coverage_is_what_the_choice_costs(logged: Callable[..., Repo]) -> None:
    repo = logged()
    at_work(repo)
    _, made = plan(repo, share=0.5)
    one = made.coverage["user_id"]
    assert one.logged == 20
    assert one.reads == 210
    assert one.taken == 6  # 20 + 19 + ... + 15 = 105
    assert one.share == 0.5
    assert one.steps()[:2] == [(0.5, 6, 6 * one.kind.row_bytes), (0.8, 12, 12 * one.kind.row_bytes)]
    assert made.coverage["merchant_id"].taken == 1


def test_what_a_policy_forbids_is_not_read(logged: Callable[..., Repo]) -> None:
    repo = logged()
    at_work(repo)
    cold = repo.open_hot(ttl_map={"default": "30s", "counts": {"cache": "never"}, "shops": "0s"})
    rehearsal, made = plan(repo, cold, share=1.0)
    assert made.views == {"user_id": ("profile",)}
    list(Warming(rehearsal, FAST).run(made))
    assert loads(cold) == {"counts": 0, "profile": 20, "shops": 0}
    rehearsal, made = plan(repo, repo.open_hot(), groups=["shops"])
    assert made.views == {"merchant_id": ("shops",)}
    with pytest.raises(KeyError, match="no group and no feature view 'shop'"):
        plan(repo, groups=["shop"])


def test_warming_never_beats_an_invalidation(logged: Callable[..., Repo]) -> None:
    """A write while the source is being read: what was read before it is not kept."""
    repo = logged()
    at_work(repo)
    cold = repo.open_hot()
    rehearsal, made = plan(repo, cold, share=1.0)
    engine = hotplate.of(cold).runtime.engine
    inner = engine.source.load
    has_written = []

    def load(requests: Any) -> Any:
        rows = inner(requests)
        if not has_written:
            has_written.append(True)
            repo.write("profile", cold, user_id=[0], age=[77], score=[0.0])
        return rows

    engine.source.load = load  # type: ignore[method-assign]
    list(Warming(rehearsal, FAST).run(made))
    assert has_written
    found = cold.get_online_features(["profile:age"], {"user_id": [0]}).to_dict()
    assert found["age"] == [77]


def test_a_warm_row_is_as_old_as_its_read(logged: Callable[..., Repo]) -> None:
    """Warming again extends no age: a row that is still fresh is left as it is."""
    repo = logged()
    at_work(repo)
    cold = repo.open_hot(ttl_map={"default": {"ttl": "30s", "jitter": 0}})
    rehearsal, made = plan(repo, cold, share=1.0)
    list(Warming(rehearsal, FAST).run(made))
    repo.clock.advance(20)
    list(Warming(rehearsal, FAST).run(made))
    response = cold.get_online_features(["profile:age"], {"user_id": [0]})
    assert response.freshness()["profile"][0].age_s == 20
    repo.clock.advance(11)
    cold.get_online_features(["profile:age"], {"user_id": [0]})
    assert loads(cold)["profile"] == 21


def test_several_warmers_share_the_work(logged: Callable[..., Repo]) -> None:
    repo = logged()
    at_work(repo)
    parts = [plan(repo, share=1.0, part=(which, 3))[1] for which in range(3)]
    taken = [set(one.keys.get("user_id", ())) for one in parts]
    assert set().union(*taken) == {(user,) for user in range(20)}
    assert sum(map(len, taken)) == 20
    assert all(taken)


def test_hashed_ids_are_found_in_a_list_of_them(
    logged: Callable[..., Repo], tmp_path: Path
) -> None:
    from hotplate.operations.warm import listed

    repo = logged(ids="hashed")
    at_work(repo)
    _, made = plan(repo, share=1.0)
    assert made.reads == 0
    assert made.coverage["user_id"].unusable == 20
    files = [tmp_path / "users.parquet"]
    pq.write_table(pa.table({"user_id": list(range(10, 5_000))}), files[0])
    rehearsal = hotplate.of(repo.hot).rehearsal(["profile"])
    traffic = hotplate.of(repo.hot).runtime.traffic
    assert traffic is not None
    chosen = select(traffic.settings.folder, SelectionSpec(_soon(repo)))
    made = plan_of(rehearsal, chosen, repo.project, share=1.0, ids=listed(files))
    assert made.keys == {"user_id": [(user,) for user in range(10, 20)]}
    assert made.coverage["user_id"].unusable == 10


def test_a_stopped_warmer_repeats_one_batch_at_the_most(
    logged: Callable[..., Repo], tmp_path: Path
) -> None:
    """Killed in the middle of a batch, it reads that one again and none of those before."""
    repo = logged()
    at_work(repo)
    rehearsal, made = plan(repo, repo.open_hot(), share=1.0)
    state = WarmState(tmp_path / "state", repo.project)
    state.keep(made)
    seen: list[Any] = []

    class Killed(BaseException):
        pass

    def read(batch: Any) -> None:
        seen.append(batch)
        if len(seen) == 5:
            raise Killed

    slow = WarmingRate(100, ramp_s=0, first=0.2)  # few entities a batch
    warming = Warming(rehearsal, slow, pace=_NoPace(), sleep=lambda seconds: None)
    batches = warming.batches(made)
    assert len(batches) > 6
    warming._warmer._read = read
    with pytest.raises(Killed):
        list(warming.run(made, state))
    assert stat.S_IMODE(next((tmp_path / "state").glob("*.json")).stat().st_mode) == 0o600
    again = WarmState(tmp_path / "state", repo.project).load(rehearsal)
    list(warming.run(again, state))
    assert seen[:5] == batches[:5]
    done = {entity: [] for entity in made.keys}  # type: ignore[var-annotated]
    for batch in [*seen[:4], *seen[5:]]:
        done[batch.entity] += batch.keys
    assert done == {entity: list(keys) for entity, keys in made.keys.items()}
    with pytest.raises(WarmingError, match="begin one without --resume"):
        state.load(rehearsal)


def test_warmings_of_other_groups_and_parts_are_kept_apart(
    logged: Callable[..., Repo], tmp_path: Path
) -> None:
    """And what is left is counted in entities: fewer views make no other batches of it."""
    repo = logged()
    at_work(repo)
    rehearsal, made = plan(repo, repo.open_hot(), share=1.0)
    states = [
        WarmState(tmp_path, repo.project, groups, part)
        for groups in ((), ("profile",))
        for part in ((0, 1), (0, 2), (1, 2))
    ]
    for number, state in enumerate(states):
        state.keep(made)
        state.note({"user_id": number})
    for number, state in enumerate(states):
        assert len(state.load(rehearsal).keys["user_id"]) == 20 - number
    states[1].remove()
    assert states[0].done() == {"user_id": 0}
    one_view = hotplate.of(repo.open_hot()).rehearsal(["profile"])
    left = states[5].load(one_view)
    assert left.keys == {"user_id": made.keys["user_id"][5:]}


def test_the_hottest_stay_where_memory_is_small(logged: Callable[..., Repo]) -> None:
    """What is read first is not what is pushed out first."""
    repo = logged()
    at_work(repo)
    small = repo.open_hot(memory={"max_entries": 20})
    rehearsal, made = plan(repo, small, share=1.0)
    list(Warming(rehearsal, WarmingRate(100, ramp_s=0, first=0.2), pace=_NoPace()).run(made))
    before = loads(small)
    assert sum(before.values()) < 30, "it ends when the memory is full"
    for user in range(5):
        small.get_online_features(["profile:age", "counts:n1"], {"user_id": [user]}).to_dict()
    assert loads(small) == before


class _NoPace:
    """Lets everything pass at once."""

    limit = 1

    def take(self, count: int) -> None:
        pass


# -- the command ----------------------------------------------------------------------------------


@pytest.fixture
def deployment(logged: Callable[..., Repo], tmp_path: Path, redis: EmbeddedServer) -> Any:
    """A repo's folder with a shared tier, and its shop."""
    repo = logged()

    def make(**more: Any) -> tuple[Repo, Path]:
        folder = tmp_path / "repo"
        folder.mkdir(exist_ok=True)
        online = {
            "type": CACHED,
            "store": dict(repo.online),
            "ttl_map": {"default": "1h"},
            "traffic": {"folder": str(tmp_path / "traffic"), "sample": 1.0, "ids": "plain"},
            "shared": {"connection_string": redis.connection_string, "timeout": "2s"},
            **more,
        }
        said = {
            "project": repo.project,
            "provider": "local",
            "registry": str(repo.folder / "registry.db"),
            "online_store": {name: value for name, value in online.items() if value is not None},
            "offline_store": {"type": "file"},
            "entity_key_serialization_version": 3,
        }
        (folder / "feature_store.yaml").write_text(yaml.safe_dump(said))
        return repo, folder

    return make


def real_log(repo: Repo, tmp_path: Path, *, has_ids: bool = True) -> None:
    """What was read, by the clock of this machine."""
    moment = datetime.now(UTC) - timedelta(hours=1)
    rows: list[Row] = []
    for user in range(40):
        key = key_of((user,), repo.project, has_ids=has_ids)
        rows += [(moment, "user_id", key, "counts,profile", 1)] * (40 - user)
    shop = key_of(("m1",), repo.project, has_ids=has_ids)
    rows += [(moment, "merchant_id", shop, "shops", 1)] * 100
    write_log(tmp_path / "traffic" / "traffic-0.parquet", rows)


def run(folder: Path, *args: str) -> Result:
    return CliRunner().invoke(main, ["warm", "-c", str(folder), *args])


def test_the_command_fills_the_shared_tier(deployment: Any, tmp_path: Path) -> None:
    repo, folder = deployment()
    real_log(repo, tmp_path)
    state = ["--state", str(tmp_path / "state")]
    looked = run(folder, "--dry-run", "--coverage", "80%", *state)
    assert looked.exit_code == 0, looked.output
    assert "user_id: 40 entities, 820 reads of counts, profile" in looked.output
    assert "chosen: 23 entities" in looked.output
    numbers = json.loads(run(folder, "--dry-run", "--json", "--coverage", "80%", *state).output)
    assert numbers["chosen"]["user_id"]["chosen"] == 23
    assert (numbers["reads"], numbers["done"]) == (47, None)
    done = run(folder, "--coverage", "80%", "--peak", "100000/s", *state)
    assert done.exit_code == 0, done.output
    assert "read 24 entities" in done.output
    again = run(folder, "--json", "--coverage", "80%", "--peak", "100000/s", *state)
    assert json.loads(again.output)["done"] == {"entities": 24, "reads": 47, "errors": 0}
    from feast import FeatureStore

    store = FeatureStore(repo_path=str(folder))
    for user in range(23):
        entities = {"user_id": [user], "merchant_id": ["m1"]}
        assert store.get_online_features(FEATURES, entities).to_dict()["age"] == [user]
    groups = hotplate.of(store).stats().groups
    assert {name: one.loads for name, one in groups.items()} == {
        "counts": 0,
        "profile": 0,
        "shops": 0,
    }
    hotplate.of(store).runtime.close()
    again = run(folder, "--resume", *state)
    assert again.exit_code == 1
    assert "begin one without --resume" in again.output
    plot = tmp_path / "plot.html"
    assert run(folder, "--dry-run", "--plot", str(plot), *state).exit_code == 0
    assert "plotly" in plot.read_text()


# what is started in the background of a script ignores Ctrl-C, and so would its children
HEEDS_CTRL_C = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from hotplate.cli import main
main()
"""


@pytest.mark.heavy
def test_the_command_goes_on_where_it_was_stopped(deployment: Any, tmp_path: Path) -> None:
    """Ctrl-C in a process of its own, at a rate that would take minutes."""
    repo, folder = deployment()
    real_log(repo, tmp_path)
    args = ["warm", "-c", str(folder), "--state", str(tmp_path / "state"), "--peak", "40/s"]
    process = subprocess.Popen(
        [sys.executable, "-c", HEEDS_CTRL_C, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    state = WarmState(tmp_path / "state", repo.project)
    await_(lambda: state.done().get("user_id", 0) >= 2, 60)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=30)[1]
    assert process.returncode == 1
    assert "go on with --resume" in said
    assert "Traceback" not in said
    count = sum(state.done().values())
    result = run(folder, "--resume", "--state", str(tmp_path / "state"), "--peak", "100000/s")
    assert result.exit_code == 0, result.output
    read = int(result.output.split("\nread ")[-1].split()[0])
    assert read <= 38 - count


@pytest.mark.parametrize(
    ("changed", "args", "said"),
    [
        ({"traffic": None}, (), "there is no traffic log: name its folder with --log"),
        ({}, ("--log", "/nowhere"), "no such folder"),
        ({"shared": None}, (), "this deployment has no shared tier"),
        ({}, ("shoes",), "no group and no feature view 'shoes'"),
        ({}, ("--coverage", "120%"), "write 90%"),
        ({}, ("--part", "3/2"), "write 1/2"),
        ({}, ("--peak", "fast"), "is no rate"),
        ({"ttl_map": {}}, (), "nothing is to be read"),
        ({}, ("--plot", "/nowhere/page.html"), "/nowhere/page.html cannot be written"),
        ({}, ("--resume",), "holds no warming of these groups and this part"),
    ],
)
def test_what_cannot_be_is_one_line(
    deployment: Any, tmp_path: Path, changed: dict[str, Any], args: tuple[str, ...], said: str
) -> None:
    repo, folder = deployment(**changed)
    real_log(repo, tmp_path)
    result = run(folder, "--state", str(tmp_path / "state"), *args)
    assert result.exit_code in (1, 2)
    assert said in result.output
    assert "Traceback" not in result.output


def test_hashed_ids_are_said_to_be_why_nothing_is_read(deployment: Any, tmp_path: Path) -> None:
    """Without a list of them, and with one that has none of them; or another part has them all."""
    repo, folder = deployment()
    real_log(repo, tmp_path, has_ids=False)
    ids = tmp_path / "ids.csv"
    ids.write_text("user_id,merchant_id\n77,m7\n")

    def refused(*args: str) -> str:
        result = run(folder, "--state", str(tmp_path / "state"), *args)
        assert result.exit_code == 1, result.output
        return result.output.partition("nothing is to be read: ")[2]

    assert refused().startswith("the ids of the log are hashed. Name the entities that there are ")
    assert "the lists of --ids hold none of them" in refused("--ids", str(ids))
    ids.write_text("user_id,merchant_id\n0,m1\n")
    some = ["--ids", str(ids), "--top", "1", "--dry-run", "--json"]
    parts = [f"{which}/9" for which in range(1, 10)]
    reads = [json.loads(run(folder, *some, "--part", part).output)["reads"] for part in parts]
    assert sum(reads) == 3
    other = parts[reads.index(0)]
    assert refused(*some[:4], "--part", other) == f"part {other} has none of the 2 entities\n"


def test_ids_of_another_type_are_said_to_be_why_nothing_is_read(
    deployment: Any, tmp_path: Path
) -> None:
    _, folder = deployment()
    moment = datetime.now(UTC) - timedelta(hours=1)
    log = tmp_path / "traffic" / "traffic-0.parquet"
    write_log(log, [(moment, "user_id", '["one"]', "counts", 1)])
    result = run(folder, "--state", str(tmp_path / "state"))
    assert result.exit_code == 1
    assert "nothing is to be read: the ids of the log are of another type" in result.output


@pytest.mark.parametrize("is_first", [True, False])
def test_what_goes_on_is_not_chosen_anew(deployment: Any, tmp_path: Path, is_first: bool) -> None:
    """Options that choose are refused beside --resume, wherever they stand; others are heeded."""
    repo, folder = deployment()
    state = WarmState(tmp_path / "state", repo.project, ("profile",), (0, 2))
    state.keep(WarmPlan({"user_id": [(1,), (2,)]}, {"user_id": ["profile"]}, {}))
    ids = tmp_path / "ids.csv"
    ids.write_text("user_id\n1\n")
    named = {
        "--log": str(tmp_path),
        "--top": "3",
        "--coverage": "90%",  # also where it is what it would be anyway
        "--days": "7",
        "--hours": "3",
        "--ids": str(ids),
        "--plot": str(tmp_path / "plot.html"),
    }
    own = ["profile", "--part", "1/2", "--state", str(tmp_path / "state")]
    for options in (*({name: value} for name, value in named.items()), named):
        args = [word for pair in options.items() for word in pair]
        result = run(folder, *(["--resume", *args] if is_first else [*args, "--resume"]), *own)
        assert result.exit_code == 2, result.output
        said = f"--resume goes on with what was chosen before: leave out {', '.join(options)}, or"
        assert said in result.output
    rate = ["--peak", "100000/s", "--most", "50%", "--score", f"{__name__}:score_all"]
    done = run(folder, "--resume", "--dry-run", "--json", *rate, *own)
    assert json.loads(done.output)["reads"] == 2


def test_a_warming_of_which_nothing_is_left_is_said_to_be_done(
    deployment: Any, tmp_path: Path
) -> None:
    """It was killed between its last batch and its end."""
    repo, folder = deployment()
    state = WarmState(tmp_path / "state", repo.project)
    state.keep(WarmPlan({"user_id": [(1,)]}, {"user_id": ["profile"]}, {}))
    state.note({"user_id": 1})
    result = run(folder, "--resume", "--state", str(tmp_path / "state"))
    assert result.exit_code == 1
    assert "nothing is left to be read: that warming is done" in result.output


def score_all(store: Any, entities: dict[str, list[Any]]) -> None:
    """What a team names with --score: users through the cache of a model's outputs."""
    if "user_id" in entities:
        hot = hotplate.of(store)
        inputs = hot.reader(["profile:age", "profile:score"]).matrix(entities)
        hot.outputs("m", "1", ["age", "score"]).score(inputs, lambda rows: rows.sum(1))


def test_outputs_are_warmed_when_all_features_are_there(
    logged: Callable[..., Repo], tmp_path: Path
) -> None:
    """Batch by batch, by a function of the caller's; what fails is tried again."""
    repo = logged()
    repo.settings = {**repo.settings, "outputs": {"m": {"needs_features": False, "ttl": "1h"}}}
    real_log(repo, tmp_path)
    store = repo.open_hot()
    hot = hotplate.of(store)
    outputs = hot.outputs("m", "1", ["age", "score"])  # it lives as long as somebody has it
    seen: list[dict[str, list[Any]]] = []

    def score(entities: dict[str, list[Any]]) -> None:
        assert loads(store) == {"counts": 10, "profile": 10, "shops": 1}
        seen.append(entities)
        if len(seen) == 1:
            raise ConnectionError("away")
        score_all(store, entities)

    rate = WarmingRate(1_000_000, ramp_s=0)
    steps = list(hot.warm(tmp_path / "traffic", rate, top=10, score=score))
    stages = [one.stage for one in steps]
    assert stages == sorted(stages)
    assert set(stages) == {"features", "outputs"}
    assert (steps[-1].entities, steps[-1].errors) == (11, 1)
    users = [user for entities in seen[1:] for user in entities.get("user_id", [])]
    assert sorted(users) == list(range(10))
    assert outputs.stats().hits == 0
    score_all(store, {"user_id": list(range(12))})
    assert outputs.stats().hits == 10


def test_the_command_calls_a_function_for_outputs(deployment: Any, tmp_path: Path) -> None:
    """They go where this deployment keeps outputs: into the shared tier."""
    repo, folder = deployment(outputs={"m": {"needs_features": False, "shared": True}})
    real_log(repo, tmp_path)
    args = ["--peak", "100000/s", "--top", "5", "--state", str(tmp_path / "state")]
    done = run(folder, "--score", f"{__name__}:score_all", *args)
    assert done.exit_code == 0, done.output
    from feast import FeatureStore

    store = FeatureStore(repo_path=str(folder))
    outputs = hotplate.of(store).outputs("m", "1", ["age", "score"])
    score_all(store, {"user_id": list(range(5))})
    stats = outputs.stats()
    assert (stats.hits, stats.rows) == (5, 5)
    wrong = run(folder, "--score", "no.such:function", *args)
    assert (wrong.exit_code, "cannot be imported" in wrong.output) == (2, True)
    none = run(folder, "--score", "math:pi", *args)
    assert (none.exit_code, "is no function" in none.output) == (2, True)


def test_the_library_call_warms_this_process(logged: Callable[..., Repo], tmp_path: Path) -> None:
    repo = logged()
    real_log(repo, tmp_path)
    hot = hotplate.of(repo.hot)
    last = list(hot.warm(tmp_path / "traffic", FAST, groups=["profile"], top=3))[-1]
    assert (last.entities, last.reads) == (3, 3)
    assert loads(repo.hot)["profile"] == 3
    assert isinstance(hot.rehearsal(), Rehearsal)
