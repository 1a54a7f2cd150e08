"""Small runs from payments to the page, and what it says of wrong input."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.offline
import pytest
from click.testing import CliRunner, Result

import hotplate
from hotplate.durations import parse_duration
from hotplate.embedded import EmbeddedServer
from pipelines.fraud.simulate import SimulationSpec, simulate
from pipelines.fraud.stores import FeatureRepo, OnlineSource, online_source, quiet_feast
from pipelines.reads.__main__ import main
from pipelines.reads.model import FEATURES, fit
from pipelines.reads.prepare import FULL_DAYS, prepare, risk, spending
from pipelines.reads.report import PLOTS
from pipelines.reads.requests import draw_requests
from pipelines.reads.updates import SpendingUpdates
from pipelines.reads.wording import GROUP_HEADINGS, equality

ROOT = Path(__file__).resolve().parents[2]
SPEC = SimulationSpec(n_customers=60, n_terminals=90, n_days=FULL_DAYS, radius=30.0)
PAYMENTS = simulate(SPEC)
NOW = datetime(2026, 1, 10, 15, tzinfo=UTC)
WORLD = prepare(PAYMENTS, SPEC, NOW)
REQUESTS = 600
DAY = pd.Timedelta(days=1)


def copy_of_repo(folder: Path) -> Path:
    """The feature repo's declarations, in a folder of the test's own."""
    repo = folder / "feature_repo"
    repo.mkdir()
    for name in ("feature_store.yaml", "features.py"):
        shutil.copy(ROOT / "feature_repo" / name, repo)
    return repo


def invoke(folder: Path, *arguments: str) -> Result:
    """Run the command, small and unpaced, over a copy of the feature repo."""
    given = [f"--repo={copy_of_repo(folder)}", f"--out={folder / 'out'}"]
    size = [f"--transactions={REQUESTS}", "--customers=60", "--terminals=90", "--rate=0"]
    return CliRunner().invoke(main, [*given, *size, *arguments])


@dataclass(frozen=True)
class Run:
    """What one run left behind."""

    results: dict[str, Any]
    page: str
    output: str
    servers: list[EmbeddedServer]


@pytest.fixture(scope="module", params=["valkey", "sqlite"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run over the embedded server with simulated payments, one over SQLite with a file."""
    folder = tmp_path_factory.mktemp(request.param)
    servers = []
    start = EmbeddedServer.start

    def start_and_note(**kwargs: Any) -> EmbeddedServer:
        servers.append(start(**kwargs))
        return servers[-1]

    arguments = [f"--store={request.param}", "--no-outside-write"]
    if request.param == "sqlite":
        PAYMENTS.to_parquet(folder / "payments.parquet")
        arguments += [f"--data={folder / 'payments.parquet'}", "--skew=0"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EmbeddedServer, "start", start_and_note)
        result = invoke(folder, *arguments)
    assert result.exit_code == 0, result.output
    out = folder / "out"
    return Run(
        results=json.loads((out / "results.json").read_text()),
        page=(out / "index.html").read_text("utf-8"),
        output=result.output,
        servers=servers,
    )


@pytest.mark.heavy
def test_every_answer_equals_bare_feasts(run: Run) -> None:
    """With all writes going through Feast, every answer and every score is the bare one."""
    answers = run.results["answers"]
    assert answers["compared"] == REQUESTS
    assert answers["different"] == 0
    assert answers["max_score_difference"] == 0.0
    assert run.results["model"]["auc_cached"] == run.results["model"]["auc_bare"]
    assert run.results["writes"]["pushed_rows"] > 0


def test_memory_answers(run: Run) -> None:
    """Each group hits, and the source is asked for fewer rows than without the cache."""
    groups = run.results["groups"]
    assert set(groups) == {
        "customer_profile",
        "customer_spending",
        "terminal_profile",
        "terminal_risk",
    }
    assert all(0 < group["hit_rate"] < 1 for group in groups.values())
    assert all(group["reads"] == REQUESTS for group in groups.values())
    reads = run.results["source_reads_per_request"]
    assert reads["bare"] == len(groups)
    assert reads["cached"] * REQUESTS == pytest.approx(sum(g["loads"] for g in groups.values()))
    assert reads["cached"] < reads["bare"]
    assert 0 < run.results["from_memory"] < 1


def test_pushes_are_forgotten(run: Run) -> None:
    """A push through the cached store drops rows of the group that it writes, and no other's."""
    groups = run.results["groups"]
    assert groups["customer_spending"]["invalidated"] > 0
    assert groups["terminal_risk"]["invalidated"] == groups["customer_profile"]["invalidated"] == 0


def test_nothing_is_served_past_its_bound(run: Run) -> None:
    """The greatest age of each group lies within its bound."""
    for group in run.results["groups"].values():
        assert 0 < group["max_age_s"] <= group["ttl_s"]
        assert group["past_bound"] == 0


def test_the_page_holds_every_plot(run: Run) -> None:
    """Each plot is drawn once, and the table's numbers are there."""
    for name in PLOTS:
        assert run.page.count(f'id="{name}"') == 1
        assert re.search(rf'Plotly\.newPlot\(\s*"{name}"', run.page)
    for name, group in run.results["groups"].items():
        assert f"<td>{name}</td><td>{100 * group['hit_rate']:.1f} %</td>" in run.page


def test_the_page_needs_no_network(run: Run) -> None:
    """Outside of the plotting library's own text the page names no address at all."""
    own = run.page.replace(plotly.offline.get_plotlyjs(), "")
    assert len(own) < len(run.page)
    assert not re.search(r"https?:|//cdn|@import|url\(", own)
    assert not re.search(r"<script[^>]*\ssrc|<link[^>]*stylesheet|<iframe|<img", own)


def test_the_terminal_says_where_the_page_is(run: Run) -> None:
    """The last lines link the page and the numbers; Feast's own prints do not appear."""
    page, numbers = run.output.strip().splitlines()[-2:]
    assert re.fullmatch(r"Page: file:///\S+/out/index\.html", page)
    assert re.fullmatch(r"Numbers: file:///\S+/out/results\.json", numbers)
    assert "Materializing" not in run.output
    assert "Warning" not in run.output


def test_the_terminal_explains_its_words_and_what_comes_next(run: Run) -> None:
    """The table's headings are the page's, and each is explained; the last words lead on."""
    text = " ".join(run.output.split())
    for heading in GROUP_HEADINGS:
        assert f"<th>{heading}</th>" in run.page
        assert heading.split()[0] in text
    for words in ("Source reads:", "Forgotten:", "Bound:", "Past bound:", "hotplate policy -c"):
        assert words in text
    assert max(map(len, run.output.splitlines()[-40:-2])) <= 80


@pytest.mark.parametrize(
    ("explained", "unexplained", "says", "says_not"),
    [
        (0, 0, ["all of the 100 answers"], ["ttl allows", "fault"]),
        (12, 0, ["all of the 88 answers", "The other 12 hold", "bound of 20 s"], ["fault"]),
        (12, 3, ["all of the 88 answers", "but 3.", "are a fault: please report it"], []),
    ],
)
def test_how_equal_the_answers_are(
    explained: int, unexplained: int, says: list[str], says_not: list[str]
) -> None:
    """First what nobody changed behind the cache's back, then what its ttl allowed."""
    text = " ".join(equality(100, explained, unexplained, "20 s"))
    assert all(words in text for words in says)
    assert not any(words in text for words in says_not)


def test_the_server_is_stopped(run: Run) -> None:
    """The server that a run started is gone when it ends."""
    assert len(run.servers) == (run.results["machine"]["store"] != "SQLite")
    assert not any(server.is_running for server in run.servers)


def test_what_another_writer_changes_is_explained(tmp_path: Path) -> None:
    """Answers made old by a writer past the cache are counted as such, and none is unexplained."""
    result = invoke(tmp_path, "--store=sqlite")
    assert result.exit_code == 0, result.output
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    answers, bound_s = results["answers"], results["groups"]["terminal_risk"]["ttl_s"]
    assert answers["explained"] > 0
    assert answers["unexplained"] == 0
    assert answers["last_different_s"] <= bound_s
    assert results["writes"]["outside_rows"] == 90


def unlabelled() -> pd.DataFrame:
    return PAYMENTS.drop(columns=["TX_FRAUD", "TX_FRAUD_SCENARIO"])


@pytest.mark.parametrize(
    ("payments", "problem"),
    [
        (lambda: PAYMENTS.rename(columns={"TX_AMOUNT": "amount"}), "column TX_AMOUNT missing"),
        (lambda: PAYMENTS.head(0), "holds no transactions"),
        (lambda: PAYMENTS.head(500), "span"),
        (unlabelled, "column TX_FRAUD missing"),
        (lambda: PAYMENTS.assign(TX_FRAUD=0), "one kind only"),
    ],
    ids=["wrong column", "no rows", "too short", "no labels", "no frauds"],
)
def test_unusable_payments_are_one_line(
    payments: Callable[[], pd.DataFrame], problem: str, tmp_path: Path
) -> None:
    """A file that cannot be used ends the run with one line that says what is wrong."""
    path = tmp_path / "payments.parquet"
    payments().to_parquet(path)
    result = invoke(tmp_path, f"--data={path}")
    assert result.exit_code == 1
    assert result.stderr.startswith("reads: ")
    assert problem in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("yaml", "problem"),
    [("online_store: {type: sqlite}", "is not Hotplate's"), ("a: [", "not YAML")],
)
def test_an_unusable_repo_is_one_line(yaml: str, problem: str, tmp_path: Path) -> None:
    """A feature repo without the cached store, or with broken YAML, is named."""
    (tmp_path / "feature_store.yaml").write_text(yaml)
    arguments = [f"--repo={tmp_path}", f"--out={tmp_path / 'out'}", "--store=sqlite"]
    result = CliRunner().invoke(main, [*arguments, "--customers=60", "--terminals=90"])
    assert result.exit_code == 1
    assert problem in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("option", ["--data", "--repo", "--out"])
def test_a_wrong_path_is_one_line(option: str, tmp_path: Path) -> None:
    """The command itself, as a process, names a path that cannot be used, and shows no stack."""
    path = tmp_path / "absent"
    if option == "--out":
        path.touch()
    done = subprocess.run(
        [sys.executable, "-m", "pipelines.reads", option, str(path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'plugins'}{os.pathsep}{ROOT}"},
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert re.fullmatch(rf"reads: {option} {path}: .*\n", done.stderr)


def test_sqlite_stands_in_for_a_missing_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no server can start, auto takes SQLite and says why; valkey refuses."""
    monkeypatch.setenv("HOTPLATE_SERVER_BINARY", str(tmp_path / "absent"))
    with online_source("auto", tmp_path) as source:
        assert source.settings["type"] == "sqlite"
        assert "no embedded server" in source.note
    result = invoke(tmp_path, "--store=valkey")
    assert result.exit_code == 1
    assert result.stderr.startswith("reads: no embedded server")


@pytest.mark.parametrize(
    ("profile", "terminal_risk", "customer_profile"), [("", "20s", "5m"), ("edge", "2m", "1h")]
)
def test_the_feature_repo_says_its_policies(
    profile: str,
    terminal_risk: str,
    customer_profile: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tags, the deployment's map and its profile resolve as the comments of the repo say."""
    monkeypatch.setenv("HOTPLATE_PROFILE", profile)
    source = OnlineSource("SQLite", {"type": "sqlite", "path": str(tmp_path / "online.db")})
    repo = FeatureRepo(copy_of_repo(tmp_path), tmp_path, source)
    repo.write_tables(WORLD.tables)
    with quiet_feast():
        store = repo.open_cached()
        repo.apply(store, "fraud_v1")
        policies = hotplate.of(store).policies()
    assert policies["terminal_risk"].ttl_ns == parse_duration(terminal_risk)
    assert policies["customer_profile"].ttl_ns == parse_duration(customer_profile)
    assert policies["customer_spending"].ttl_ns == parse_duration("30s")
    assert policies["terminal_risk"].stale_while_revalidate_ns > 0


def test_windows_end_at_the_moment() -> None:
    """Counts, means and shares equal a plain recount, labels a week late."""
    moment = WORLD.moment
    times = WORLD.stream["TX_DATETIME"]
    assert moment <= times.iloc[0]
    assert times.iloc[-1] < pd.Timestamp(NOW.replace(tzinfo=None))
    moved = PAYMENTS.assign(
        TX_DATETIME=PAYMENTS["TX_DATETIME"] + pd.Timedelta(weeks=WORLD.shift_weeks)
    )
    spent = spending(moved, moment).set_index("customer_id")
    risks = risk(moved, moment).set_index("terminal_id")
    for days in (1, 7, 30):
        for entity in (3, 17):
            age = moment - moved["TX_DATETIME"]
            own = moved[(moved["CUSTOMER_ID"] == entity) & (age > 0 * DAY) & (age <= days * DAY)]
            assert spent.loc[entity, f"customer_tx_{days}d"] == len(own)
            mean = own["TX_AMOUNT"].mean() if len(own) else 0.0
            assert spent.loc[entity, f"customer_mean_amount_{days}d"] == pytest.approx(mean)
            late = age - 7 * DAY
            own = moved[(moved["TERMINAL_ID"] == entity) & (late > 0 * DAY) & (late <= days * DAY)]
            assert risks.loc[entity, f"terminal_tx_{days}d"] == len(own)
            mean = own["TX_FRAUD"].mean() if len(own) else 0.0
            assert risks.loc[entity, f"terminal_fraud_share_{days}d"] == pytest.approx(mean)


def test_training_knows_nothing_of_later_payments() -> None:
    """Training rows and served tables stay as they are whatever is paid after their moment."""
    moment = WORLD.moment - pd.Timedelta(weeks=WORLD.shift_weeks)
    is_later = PAYMENTS["TX_DATETIME"] >= moment
    changed = PAYMENTS.assign(
        TX_AMOUNT=PAYMENTS["TX_AMOUNT"].where(~is_later, 9_999.0),
        TX_FRAUD=PAYMENTS["TX_FRAUD"].where(~is_later, 1).astype("int8"),
    )
    other = prepare(changed, SPEC, NOW)
    pd.testing.assert_frame_equal(other.training, WORLD.training)
    for name, table in WORLD.tables.items():
        pd.testing.assert_frame_equal(other.tables[name], table)
    assert WORLD.training["TX_DATETIME"].max() < WORLD.moment - 7 * DAY


def test_the_model_scores_as_scikit_learn_does() -> None:
    """The folded weights give the probabilities of the fitted pipeline."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rows = WORLD.training
    request = rows[["amount", "is_night", "is_weekend"]].to_numpy("float64")
    features = rows[list(FEATURES)].fillna(0).to_numpy("float64")
    excess = request[:, 0] / (features[:, FEATURES.index("customer_mean_amount_30d")] + 1)
    inputs = np.column_stack([request, excess, features])
    fitted = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1_000))
    expected = fitted.fit(inputs, rows["TX_FRAUD"]).predict_proba(inputs[:50])[:, 1]
    model = fit(rows)
    found = [
        model.score(request[row], {name: [features[row, at]] for at, name in enumerate(FEATURES)})
        for row in range(50)
    ]
    assert found == pytest.approx(expected)


def test_an_unknown_entity_is_scored() -> None:
    """Null features, as an unknown card has them, count as zeros."""
    model = fit(WORLD.training)
    request = np.array([10.0, 0.0, 0.0])
    nulls, zeros = ({name: [value] for name in FEATURES} for value in (None, 0))
    assert model.score(request, nulls) == model.score(request, zeros)


def test_requests_are_payments_of_the_stream() -> None:
    """Without skew they are the stream's own, in order; with it, popular cards return."""
    stream = WORLD.stream
    plain = draw_requests(stream, len(stream) + 5, 0, seed=1)
    assert plain.customer_ids == [*stream["CUSTOMER_ID"], *stream["CUSTOMER_ID"].head(5)]
    skewed = draw_requests(stream, 2_000, 1.2, seed=1)
    assert skewed.customer_ids == draw_requests(stream, 2_000, 1.2, seed=1).customer_ids
    assert skewed.customer_ids != draw_requests(stream, 2_000, 1.2, seed=2).customer_ids
    pairs = set(zip(stream["CUSTOMER_ID"], stream["TERMINAL_ID"], strict=True))
    assert set(zip(skewed.customer_ids, skewed.terminal_ids, strict=True)) <= pairs
    assert skewed.top_share > plain.top_share


def test_spending_follows_the_payments() -> None:
    """Pushed rows count each payment once and hold the running mean, for new cards too."""
    updates = SpendingUpdates(WORLD.tables["customer_spending"])
    frame = updates.after([(999_999, 10.0), (999_999, 30.0)])
    assert frame.to_dict("records") == [
        {
            "customer_id": 999_999,
            **{f"customer_tx_{days}d": 2 for days in (1, 7, 30)},
            **{f"customer_mean_amount_{days}d": 20.0 for days in (1, 7, 30)},
        }
    ]
    before = WORLD.tables["customer_spending"].iloc[0]
    row = updates.after([(int(before["customer_id"]), 5.0)]).iloc[0]
    assert row["customer_tx_30d"] == before["customer_tx_30d"] + 1
