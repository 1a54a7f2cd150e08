"""What a repo says by hand: found, obeyed, and refused in words where it cannot be."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from feast.repo_operations import get_repo_files

from hotplate.quality import ColumnQuality, Covered, QualityError, TableQuality, ViewQuality
from hotplate.quality.module import declarations
from hotplate.quality.outcome import ERROR

from .repo import AT, CREATED, NOW, QualityRepo, bad

HEAD = (
    "import great_expectations.expectations as gxe\n"
    "from hotplate.quality import ColumnQuality, Covered, TableQuality, ViewQuality\n"
)


# -- obeyed ---------------------------------------------------------------------------------------


def test_expectations_of_great_expectations_are_judged(repo: QualityRepo) -> None:
    """Of rows, of pairs, of several columns and of whole columns; with what they say of them."""
    repo.declare(
        HEAD + "cards = ViewQuality('cards', expectations=[\n"
        "    gxe.ExpectColumnValuesToBeBetween(column='count', max_value=1, description='few'),\n"
        "    gxe.ExpectColumnPairValuesAToBeGreaterThanB(column_A='count', column_B='amount'),\n"
        "    gxe.ExpectColumnMeanToBeBetween(column='share', max_value=0.01),\n"
        "    gxe.ExpectTableRowCountToEqual(value=7),\n"
        "    gxe.ExpectColumnValuesToNotBeNull(column='kind'),\n"
        "])\n"
    )
    found = bad(repo.check())
    assert set(found) == {("own", name) for name in ("count", "count, amount", "share", "")}
    assert found["own", "count"].says == "few"
    assert found["own", "count"].failing == int((repo.good["count"] > 1).sum())
    pairs = found["own", "count, amount"]
    assert pairs.failing == int((repo.good["count"] <= repo.good["amount"]).sum())
    assert all(one.startswith("{count=") for one in pairs.examples)


def test_a_row_condition_sees_the_other_columns(repo: QualityRepo) -> None:
    """An expectation of some rows only is judged on those."""
    repo.declare(
        HEAD + "from great_expectations.expectations.row_conditions import Column\n"
        "cards = ViewQuality('cards', expectations=[gxe.ExpectColumnValuesToBeBetween("
        "column='amount', max_value=-1, row_condition=Column('kind') == 'payout')])\n"
    )
    (one,) = bad(repo.check()).values()
    assert one.of == int((repo.good["kind"] == "payout").sum())


def test_a_column_can_be_loosened_or_left_out(repo: QualityRepo) -> None:
    """Nulls, range, values and single checks, by column and by view."""
    repo.write(
        repo.good.assign(
            amount=repo.good["amount"] * 1e6,
            balance=repo.good["balance"].where(repo.good.index % 2 > 0),
            kind="gift",
            count=-9,
        )
    )
    assert {check for check, _ in bad(repo.check())} == {"range", "median", "nulls", "values"}
    repo.declare(
        HEAD + "cards = ViewQuality('cards', off=['median'], columns={\n"
        "    'amount': ColumnQuality(range=(0, None)),\n"
        "    'balance': ColumnQuality(nulls='60%'),\n"
        "    'kind': ColumnQuality(values=['gift']),\n"
        "    'count': ColumnQuality(off=['range']),\n"
        "})\n"
    )
    assert not bad(repo.check())


def test_bounds_that_are_stated_are_meant(repo: QualityRepo) -> None:
    """A range by hand lets no row outside, unless it says how many."""
    frame = repo.good.copy()
    frame.loc[7, "count"] = 21
    repo.write(frame)
    text = HEAD + "cards = ViewQuality('cards', columns={'count': ColumnQuality(%s)})\n"
    repo.declare(text % "range=(0, 20)")
    assert set(bad(repo.check())) == {("range", "count")}
    repo.declare(text % "range=(0, 20), outside='0.1%'")
    assert not bad(repo.check())


def test_age_and_skew_are_stated(repo: QualityRepo) -> None:
    """`max_age` and `skew` go before what is derived."""
    later = repo.good.assign(
        **{AT: repo.good[AT] + timedelta(hours=3), CREATED: repo.good[CREATED] + timedelta(hours=3)}
    )
    repo.write(later)
    assert set(bad(repo.check())) == {("future", AT)}
    repo.declare(HEAD + "cards = ViewQuality('cards', skew='1d', max_age='1h')\n")
    assert not bad(repo.check())
    repo.write(repo.good)
    assert set(bad(repo.check())) == {("fresh", AT)}
    repo.declare(HEAD + "cards = ViewQuality('cards', max_age='none')\n")
    repo.write(repo.good[repo.good[AT] < NOW - timedelta(days=20)].reset_index(drop=True))
    assert ("fresh", AT) not in bad(repo.check())


def test_coverage_counts_entities(repo: QualityRepo) -> None:
    """The share is of distinct entities, and strangers are masked."""
    repo.declare(
        HEAD + "cards = ViewQuality('cards', covered=[Covered(by='limits', at_least='99.9%')])\n"
    )
    assert not bad(repo.check())
    frame = repo.good.copy()
    cards = sorted(frame["card_id"].unique())
    frame["card_id"] = frame["card_id"].where(~frame["card_id"].isin(cards[:30]), 5)
    frame.loc[frame.index[:1], "card_id"] = 6
    repo.write(frame)
    one = bad(repo.check())["covered", "card_id"]
    assert (one.failing, one.of) == (2, frame["card_id"].nunique())
    assert all(example.startswith("#") for example in one.examples)


def test_private_columns_are_masked(repo: QualityRepo) -> None:
    """No value of a private column is shown, and none is in the reference."""
    repo.declare(HEAD + "cards = ViewQuality('cards', private=['kind', 'amount'])\n")
    profile = repo.measure().views["cards"]
    assert profile.columns["kind"].values is None
    assert profile.columns["amount"].range is None
    repo.declare(
        HEAD + "cards = ViewQuality('cards', private=['kind'], columns={"
        "'kind': ColumnQuality(values=['gift'])})\n"
    )
    one = bad(repo.check())["values", "kind"]
    assert "payment" not in " ".join(one.examples)
    assert all(example.startswith("#") for example in one.examples)


def test_a_table_that_is_no_view(repo: QualityRepo) -> None:
    """Types, keys, uniqueness, time and what is said of columns, from a file it names."""
    repo.good.assign(extra=1).to_parquet(repo.folder / "raw.parquet")
    text = (
        HEAD + "raw = TableQuality('raw', file='raw.parquet', keys=['card_id'], "
        f"timestamp='{AT}', created='{CREATED}', "
        f"schema={{'card_id': 'int', 'amount': 'float', '{AT}': 'timestamp', "
        f"'{CREATED}': 'timestamp'%s}})\n"
    )
    repo.declare(text % "")
    assert not bad(repo.check("raw"))
    repo.declare(text % ", 'lost': 'int'")
    assert set(bad(repo.check("raw"))) == {("exists", "lost")}


def test_by_hand_of_a_column_that_is_not_there_is_an_error(repo: QualityRepo) -> None:
    """A misspelt column in an expectation is no silent pass."""
    repo.declare(
        HEAD + "cards = ViewQuality('cards', expectations=["
        "gxe.ExpectColumnValuesToNotBeNull(column='amuont')])\n"
    )
    (one,) = repo.check().bad
    assert one.status == ERROR
    assert "no column amuont" in one.observed


def test_an_expectation_that_raises_is_an_error(repo: QualityRepo) -> None:
    """What Great Expectations cannot judge counts against the data, with its reason."""
    repo.declare(
        HEAD + "cards = ViewQuality('cards', expectations=["
        "gxe.ExpectColumnMeanToBeBetween(column='kind', min_value=1)])\n"
    )
    (one,) = repo.check().bad
    assert one.status == ERROR
    assert one.observed


# -- the file -------------------------------------------------------------------------------------


def test_the_file_may_use_its_neighbours(repo: QualityRepo) -> None:
    """`quality.py` imports a module beside it; the path is as it was afterwards."""
    (repo.folder / "names_of_this_repo.py").write_text("VIEW = 'cards'\n")
    repo.declare(
        "from names_of_this_repo import VIEW\nfrom hotplate.quality import ViewQuality\n"
        "one = ViewQuality(VIEW)\n"
    )
    before = list(sys.path)
    assert set(declarations(repo.folder)) == {"cards"}
    assert sys.path == before


def test_feast_apply_can_leave_the_file_alone(repo: QualityRepo) -> None:
    """What .feastignore names is not imported by `feast apply`."""
    repo.declare("raise AssertionError\n")
    assert [one.name for one in get_repo_files(repo.folder)] == ["quality.py"]
    (repo.folder / ".feastignore").write_text("quality.py\n")
    assert not get_repo_files(repo.folder)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("def broken(:\n", "line 1"),
        ("x = 1\ny = unknown\n", "line 2: NameError"),
        ("import sys\nsys.exit(3)\n", "SystemExit"),
        ("import nothing_of_that_name\n", "nothing_of_that_name"),
        (HEAD + "a = ViewQuality('cards')\nb = ViewQuality('cards')\n", "twice"),
        (HEAD + "a = ViewQuality('card')\n", "no feature view"),
        (HEAD + "a = ViewQuality('cards', covered=[Covered(by='x')])\n", "nobody declares"),
        (HEAD + "\na = ViewQuality('cards', max_age='3 days')\n", "line 4: quality of 'cards'"),
        (HEAD + "a = ViewQuality('cards', off=['freshness'])\n", "no check 'freshness'"),
        (HEAD + "a = ViewQuality('cards', expectations=[7])\n", "no expectation"),
    ],
)
def test_what_is_wrong_in_the_file_is_said_with_its_place(
    repo: QualityRepo, text: str, what: str
) -> None:
    """A fault in quality.py is one line: the file, where in it, and what."""
    repo.declare(text)
    done = repo.command("run", "--now", NOW.isoformat())
    assert done.exit_code == 1
    said = " ".join(done.output.replace("│", " ").split())
    assert "Traceback" not in said
    assert what in said


@pytest.mark.parametrize(
    "make",
    [
        lambda: ColumnQuality(nulls=1.5),
        lambda: ColumnQuality(nulls="much"),
        lambda: ColumnQuality(range=(3, 1)),
        lambda: ColumnQuality(range=(None, None)),
        lambda: ColumnQuality(range=5),  # type: ignore[arg-type]
        lambda: ColumnQuality(off=["all"]),
        lambda: Covered(by="x", at_least=-1),
        lambda: ViewQuality("v", skew="soon"),
        lambda: ViewQuality("v", expectations="none"),  # type: ignore[arg-type]
        lambda: TableQuality("t", schema={"a": "number"}),
        lambda: TableQuality("t", schema={"a": "int"}, keys=["b"]),
    ],
)
def test_declarations_that_cannot_be_are_refused(make: Callable[[], Any]) -> None:
    """When they are made, with what to write instead."""
    with pytest.raises(QualityError):
        make()
