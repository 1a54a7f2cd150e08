"""`hotplate quality profile` and `run`: what they say, write and exit with, whatever is wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest
from click.testing import CliRunner

import hotplate
from hotplate.cli import main

from ..stores import await_
from .repo import NOW, QualityRepo

PLUGINS = str(Path(hotplate.__file__).parents[1])
AS_OF = ("--now", NOW.isoformat())
ID = "1000007"


@pytest.fixture
def faulty(repo: QualityRepo) -> QualityRepo:
    """With rows twice, one of a card that a test knows, and amounts that are far too high."""
    frame = pd.concat([repo.good, repo.good.iloc[:5]], ignore_index=True)
    frame.loc[[0, len(frame) - 5], "card_id"] = int(ID)
    frame.loc[frame.index[::50], "amount"] = 1e9
    repo.write(frame)
    return repo


# -- run ------------------------------------------------------------------------------------------


def test_good_data_exits_with_0(repo: QualityRepo) -> None:
    """A summary, and the word for it."""
    done = repo.command("run", *AS_OF)
    assert done.exit_code == 0, done.output
    assert "as expected" in done.output
    assert "cards" in done.output
    assert "limits" in done.output


def test_bad_data_exits_with_1_and_a_table(faulty: QualityRepo) -> None:
    """The table names view, column, expectation, failing share and examples; ids are masked."""
    done = faulty.command("run", "cards", *AS_OF)
    assert done.exit_code == 1
    said = re.sub(r"[│\s]+", " ", done.output)
    for part in ("cards", "amount", "expect_column_values_to_be_between", "2.03%", "1000000000.0"):
        assert part in said
    assert "expect_compound_columns_to_be_unique" in said
    assert ID not in done.output


def test_ids_are_shown_on_demand(faulty: QualityRepo) -> None:
    """`--show-ids` shows them as they are."""
    done = faulty.command("run", "cards", "--show-ids", "--json", *AS_OF)
    assert ID in done.output


def test_json_is_for_machines(faulty: QualityRepo) -> None:
    """`--json` prints one object, with every expectation of every view."""
    done = faulty.command("run", "--json", *AS_OF)
    said = json.loads(done.output)
    assert said["good"] is False
    by_view = {one["view"]: one for one in said["views"]}
    assert by_view["limits"]["good"] is True
    failed = [one for one in by_view["cards"]["expectations"] if one["status"] == "failed"]
    assert {one["check"] for one in failed} == {"unique", "range"}
    (ranged,) = [one for one in failed if one["check"] == "range"]
    assert ranged["failing"] == 61
    assert ranged["of"] == 3_005
    assert ID not in done.output


def test_junit_is_what_a_ci_reads(faulty: QualityRepo, tmp_path: Path) -> None:
    """A suite a view, a case an expectation, counts that agree, no ids."""
    path = tmp_path / "made" / "junit.xml"
    faulty.command("run", "--junit", str(path), *AS_OF)
    root = ElementTree.parse(path).getroot()
    suites = {suite.get("name"): suite for suite in root}
    assert set(suites) == {"cards", "limits"}
    for suite in suites.values():
        assert len(suite.findall("testcase")) == int(suite.get("tests", "-1"))
        assert len(suite.findall("testcase/failure")) == int(suite.get("failures", "-1"))
    failures = suites["cards"].findall("testcase/failure")
    assert {one.get("type") for one in failures} == {"unique", "range"}
    assert ID not in path.read_text()


def test_junit_survives_what_xml_cannot_hold(repo: QualityRepo, tmp_path: Path) -> None:
    """Control characters and markup in data make no broken XML."""
    repo.write(repo.good.assign(kind="\x00\x07<a href='b'>\ufffe"))
    path = tmp_path / "junit.xml"
    repo.command("run", "cards", "--junit", str(path), *AS_OF)
    failures = ElementTree.parse(path).getroot().findall("testsuite/testcase/failure")
    assert {one.get("type") for one in failures} == {"values"}


class Links(HTMLParser):
    """What a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name in ("src", "href", "srcset", "action", "data", "poster", "background"):
                self.found.append(value or "")


def test_the_page_needs_no_network(faulty: QualityRepo, tmp_path: Path) -> None:
    """No script, no style or image of elsewhere, and what is wrong stands in it, escaped."""
    frame = faulty.good.assign(kind="<b>gift</b>")
    faulty.write(frame)
    done = faulty.command("run", "--html", str(tmp_path / "out"), *AS_OF)
    text = (tmp_path / "out" / "index.html").read_text()
    links = Links()
    links.feed(text)
    assert all(one.startswith(("#", "data:,")) for one in links.found)
    assert not {"script", "img", "iframe", "object", "embed", "b>gift"} & links.tags
    assert "@import" not in text
    assert "url(" not in text
    assert "&lt;b&gt;gift&lt;/b&gt;" in text
    assert "<b>gift" not in text
    assert (tmp_path / "out" / "index.html").as_uri() in done.output.replace("\n", "")


def test_another_file_in_the_place_of_the_view_s_own(repo: QualityRepo, tmp_path: Path) -> None:
    """`--file VIEW=PATH` judges a Parquet or CSV file."""
    path = tmp_path / "other.csv"
    repo.good.assign(amount=-1.0).to_csv(path, index=False)
    done = repo.command("run", "cards", "--json", "--file", f"cards={path}", *AS_OF)
    (view,) = json.loads(done.output)["views"]
    assert view["source"] == str(path)
    failed = {one["column"] for one in view["expectations"] if one["status"] == "failed"}
    assert failed == {"amount"}


def test_without_a_reference_it_says_what_is_not_judged(repo: QualityRepo) -> None:
    """A run without a reference is no silent pass."""
    (repo.folder / "quality.json").unlink()
    done = repo.command("run", *AS_OF)
    assert done.exit_code == 0
    assert "ranges, nulls and texts are not judged" in done.output
    assert "hotplate quality profile" in done.output


# -- profile --------------------------------------------------------------------------------------


def test_profile_writes_what_run_reads(repo: QualityRepo) -> None:
    """A reference made by the command judges; its keys and ids have no values in it."""
    path = repo.folder / "quality.json"
    path.unlink()
    assert repo.command("profile", *AS_OF).exit_code == 0
    said = json.loads(path.read_text())
    columns = said["views"]["cards"]["columns"]
    assert set(columns) == set(repo.good.columns)
    assert set(columns["card_id"]) == {"stored", "nulls", "distinct"}
    assert columns["kind"]["values"] == ["payment", "payout", "refund"]
    assert repo.command("run", *AS_OF).exit_code == 0


def test_profile_keeps_what_is_written_by_hand(repo: QualityRepo) -> None:
    """`expect` of a column and of a view outlive a new measurement, and are obeyed."""
    path = repo.folder / "quality.json"
    said = json.loads(path.read_text())
    said["views"]["cards"]["columns"]["amount"]["expect"] = {"range": [0, 1e9]}
    said["views"]["cards"]["expect"] = {"off": ["median"]}
    path.write_text(json.dumps(said))
    repo.write(repo.good.assign(amount=repo.good["amount"] * 1e4))
    assert repo.command("run", "cards", *AS_OF).exit_code == 0
    repo.write(repo.good)
    assert repo.command("profile", *AS_OF).exit_code == 0
    again = json.loads(path.read_text())["views"]["cards"]
    assert again["columns"]["amount"]["expect"] == {"range": [0, 1e9]}
    assert again["expect"] == {"off": ["median"]}


def test_profile_can_only_look(repo: QualityRepo) -> None:
    """`--dry-run` prints the file and leaves it alone."""
    path = repo.folder / "quality.json"
    path.unlink()
    done = repo.command("profile", "cards", "--dry-run", *AS_OF)
    assert json.loads(done.output)["views"].keys() == {"cards"}
    assert not path.exists()


def test_profile_refuses_what_is_no_reference(repo: QualityRepo) -> None:
    """Data without rows or columns is no reference; the old file stays."""
    before = (repo.folder / "quality.json").read_bytes()
    repo.write(repo.good.drop(columns="amount"))
    done = repo.command("profile", *AS_OF)
    assert done.exit_code == 1
    assert "no column 'amount'" in done.output
    repo.write(repo.good.iloc[:0])
    assert "no rows" in repo.command("profile", *AS_OF).output
    assert (repo.folder / "quality.json").read_bytes() == before


# -- whatever is wrong ----------------------------------------------------------------------------


def line(done: object) -> str:
    """The only line that a command said."""
    text = str(getattr(done, "output", done)).strip()
    assert "Traceback" not in text
    return " ".join(text.split())


@pytest.mark.parametrize("command", ["run", "profile"])
def test_no_repo(tmp_path: Path, command: str) -> None:
    """A folder without a feature_store.yaml exits with 1 and says how to name another."""
    done = CliRunner().invoke(main, ["quality", command, "-c", str(tmp_path)])
    assert done.exit_code == 1
    assert "no feature_store.yaml" in line(done)
    assert "--chdir" in line(done)


@pytest.mark.parametrize("command", ["run", "profile"])
def test_nothing_applied(tmp_path: Path, command: str) -> None:
    """A repo without views exits with 1 and says to apply them."""
    made = QualityRepo(tmp_path / "repo", is_applied=False)
    done = made.command(command)
    assert done.exit_code == 1
    assert "feast apply" in line(done)


@pytest.mark.parametrize("command", ["run", "profile"])
def test_no_such_view(repo: QualityRepo, command: str) -> None:
    """A misspelt view is wrong usage, and the known ones are named."""
    done = repo.command(command, "card")
    assert done.exit_code == 2
    assert "'card'" in line(done)
    assert "cards, limits" in line(done)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--file", "cards"], "VIEW=PLACE"),
        (["--now", "yesterday"], "is no time"),
        (["--file", "cards=a", "--sql", "cards=b"], "both a --file and a --sql"),
        (["--bogus"], "No such option"),
    ],
)
def test_wrong_usage_exits_with_2(repo: QualityRepo, arguments: list[str], what: str) -> None:
    """What cannot be read of the command line is said as such."""
    done = repo.command("run", *arguments)
    assert done.exit_code == 2
    assert what in line(done)


def _no_reference(repo: QualityRepo) -> list[str]:
    return ["--reference", str(repo.folder / "none.json")]


def _broken_reference(repo: QualityRepo) -> list[str]:
    (repo.folder / "quality.json").write_text('{"hotplate_quality": 1,\n"views": {')
    return []


def _foreign_reference(repo: QualityRepo) -> list[str]:
    (repo.folder / "quality.json").write_text("[]")
    return []


def _wrong_expect(repo: QualityRepo) -> list[str]:
    path = repo.folder / "quality.json"
    said = json.loads(path.read_text())
    said["views"]["cards"]["columns"]["amount"]["expect"] = {"nuls": 0.5}
    path.write_text(json.dumps(said))
    return []


def _missing_file(repo: QualityRepo) -> list[str]:
    return ["--file", f"cards={repo.folder / 'none.parquet'}"]


def _broken_file(repo: QualityRepo) -> list[str]:
    path = repo.folder / "broken.parquet"
    path.write_bytes(b"PAR1 and nothing more PAR1")
    return ["--file", f"cards={path}"]


def _missing_database(repo: QualityRepo) -> list[str]:
    return ["--sql", f"cards=sqlite:///{repo.folder / 'none.db'}#t"]


def _silent_server(repo: QualityRepo) -> list[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return ["--sql", f"cards=postgresql+psycopg://me:pass-word@127.0.0.1:{port}/db#t"]


def _no_dialect(repo: QualityRepo) -> list[str]:
    return ["--sql", "cards=nonsense://me:pass-word@host/db#t"]


def _no_url(repo: QualityRepo) -> list[str]:
    return ["--sql", "cards=somewhere#t"]


def _locked_page(repo: QualityRepo) -> list[str]:
    (repo.folder / "taken").write_text("a file, no folder")
    return ["--html", str(repo.folder / "taken" / "page")]


@pytest.mark.parametrize(
    ("arrange", "what"),
    [
        (_no_reference, "cannot be read"),
        (_broken_reference, "line 2"),
        (_foreign_reference, "no reference"),
        (_wrong_expect, "knows no 'nuls'"),
        (_missing_file, "no such file"),
        (_broken_file, "cannot be read"),
        (_missing_database, "no such file"),
        (_silent_server, "cannot be read"),
        (_no_dialect, "no driver"),
        (_no_url, "names no database"),
        (_locked_page, "cannot be written"),
    ],
)
def test_what_cannot_be_read_exits_with_1(
    repo: QualityRepo, arrange: Callable[[QualityRepo], list[str]], what: str
) -> None:
    """Each says in words what is wrong, without a stack trace and without a password."""
    done = repo.command("run", "cards", *arrange(repo), *AS_OF)
    assert done.exit_code == 1
    assert what in re.sub(r"[│\s]+", " ", line(done))
    assert "pass-word" not in done.output
    assert not (repo.folder / "none.db").exists()


def test_one_unreadable_view_leaves_the_others_judged(repo: QualityRepo) -> None:
    """A file that is gone is named, and the rest is judged all the same."""
    (repo.folder / "cards.parquet").unlink()
    said = json.loads(repo.command("run", "--json", *AS_OF).output)
    by_view = {one["view"]: one for one in said["views"]}
    assert "no such file" in by_view["cards"]["problem"]
    assert by_view["limits"]["good"] is True


@pytest.fixture
def environment() -> dict[str, str]:
    """Of a command in a process of its own."""
    return {**os.environ, "PYTHONPATH": PLUGINS, "PYTHONWARNINGS": "ignore"}


# what is started in the background of a script ignores Ctrl-C, and so would its children
HEEDS_CTRL_C = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from hotplate.cli import main
main()
"""


@pytest.mark.heavy
def test_ctrl_c_is_one_line(repo: QualityRepo, environment: dict[str, str]) -> None:
    """A run that is stopped says so, exits with 130 and leaves no page half written."""
    page, reached = repo.folder / "page", repo.folder / "reached"
    repo.declare(f"import time\nopen({str(reached)!r}, 'w').close()\ntime.sleep(600)\n")
    process = subprocess.Popen(
        [sys.executable, "-c", HEEDS_CTRL_C, "quality", "run", "--html", str(page)],
        cwd=repo.folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        await_(reached.exists, 120)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130, said
    assert "stopped" in said
    assert "Traceback" not in said
    assert not page.exists()


@pytest.mark.heavy
def test_it_uses_no_network(repo: QualityRepo, environment: dict[str, str]) -> None:
    """With every socket refused, a whole run ends as it does with a network."""
    code = (
        "import socket, sys\n"
        "def refused(*arguments, **more):\n"
        "    raise SystemExit('a socket was opened')\n"
        "socket.socket.connect = socket.socket.connect_ex = refused\n"
        "socket.getaddrinfo = socket.create_connection = refused\n"
        "from hotplate.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    arguments = ["quality", "run", "-c", str(repo.folder), "--html", str(repo.folder / "page")]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments, *AS_OF],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (repo.folder / "page" / "index.html").exists()


@pytest.mark.heavy
def test_without_great_expectations_it_says_what_to_install(
    repo: QualityRepo, environment: dict[str, str]
) -> None:
    """Where the extra is missing, the command ends with the line that brings it."""
    code = (
        "import sys; sys.modules['great_expectations'] = None\n"
        "from hotplate.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "quality", "run", "-c", str(repo.folder)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "pip install 'feast-hotplate[quality]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_older_moment_can_be_judged(repo: QualityRepo) -> None:
    """`--now` makes a month-old file fresh again, and a fresh one of the future."""
    later = (NOW + timedelta(days=60)).isoformat()
    earlier = (NOW - timedelta(days=10)).isoformat()
    for now, check in ((later, "fresh"), (earlier, "future")):
        said = json.loads(repo.command("run", "cards", "--json", "--now", now).output)
        failed = [one for one in said["views"][0]["expectations"] if one["status"] == "failed"]
        assert {one["check"] for one in failed} == {check}
