"""Served against training features: what is right passes, and each planted skew is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hotplate.skew import FeatureSkew, SkewError, SkewReport, SkewSpec, check_skew

from .shop import START, Shop

pytestmark = pytest.mark.heavy  # whole repos and long replays: minutes in all

WINDOWS = ("n_1h", "n_24h", "sum_1h", "mean")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """One for all: nothing changes it."""
    return Shop(tmp_path_factory.mktemp("shop"))


def check(shop: Shop, frame: pd.DataFrame | None = None, **spec: Any) -> SkewReport:
    return check_skew(shop.store, "model", shop.served(frame), SkewSpec(**spec))


def of(report: SkewReport, name: str) -> FeatureSkew:
    return next(one for one in report.features if one.name == name)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_was_served_rightly_is_equal_or_explained(seed: int, tmp_path: Path) -> None:
    """Late events, rewritten rows, values from a cache, reads after their instant, unknown cards:
    nothing of it is called a skew, and each explanation occurs."""
    shop = Shop(tmp_path, seed=seed, decisions=400)
    report = check(shop)
    assert report.is_fine
    assert report.rows == report.logged == 400
    assert [one.unexplained for one in report.features] == [0] * 6
    found = {name for one in report.features for name, count in one.counts.items() if count}
    found.discard("not yet online")  # read in the second in which a row was being written
    assert found == {"equal", "both null", "rounded", "cached", "read later", "written later"}
    for name in WINDOWS:  # an age explains nothing of windows
        assert of(report, name).counts["cached"] == of(report, name).counts["written later"] == 0
    assert of(report, "segment").same < 400
    assert all(one.interval.low == 0 < one.interval.high < 0.02 for one in report.features)
    assert sum(rows for rows, _ in report.by_layer.values()) == 400


def test_a_value_that_was_altered_in_the_log_is_found(shop: Shop) -> None:
    """One value of each feature, by its row; the others stay as they are."""
    for place, name in enumerate([*WINDOWS, "score"]):
        frame = shop.log.copy()
        row = int(np.flatnonzero(frame[name].notna())[10 * place])
        frame.loc[row, name] = frame.loc[row, name] + 1
        report = check(shop, frame)
        assert [one.name for one in report.failed] == [name]
        assert of(report, name).unexplained == 1
        assert of(report, name).examples[0]["row"] == row
        assert of(report, name).greatest is not None
    frame = shop.log.copy()
    frame.loc[3, "segment"] = "z"
    assert [one.name for one in check(shop, frame).failed] == ["segment"]
    assert check(shop, frame, limit=0.01).is_fine


def test_a_null_that_was_served_for_a_value_is_found(shop: Shop) -> None:
    frame = shop.log.copy()
    frame.loc[frame["mean"].notna(), "mean"] = np.nan
    found = of(check(shop, frame), "mean")
    assert found.unexplained > 250
    assert "served is null and training is not in 100% of them" in found.hints


def test_a_value_older_than_its_age_is_found(shop: Shop) -> None:
    """Profiles from two hours ago, served with an age of ten minutes at the most."""
    frame = shop.log.copy()
    for row in range(len(frame)):
        read_at = frame.loc[row, "decided"] - pd.Timedelta("2h")
        profile = shop.profile_at(int(frame.loc[row, "card_id"]), read_at)
        frame.loc[row, ["score", "segment"]] = profile["score"], profile["segment"]
    report = check(shop, frame)
    assert [one.name for one in report.failed] == ["score", "segment"]
    assert of(report, "score").unexplained > 200
    (hint,) = of(report, "score").hints
    assert hint.startswith("served is the training value of 2h earlier in ")
    # where the log says that they are so old, nothing is wrong with them
    said = frame.assign(age_s=frame["age_s"] + 7_200)
    assert check(shop, said).is_fine


def test_windows_may_not_be_old_whatever_the_log_says(shop: Shop) -> None:
    """A cached window is dropped by every event, so an age of an hour excuses nothing."""
    frame = shop.log.assign(old_s=3_600.0, n_24h=shop.log["n_24h"] - 1)
    log = replace(shop.served(frame), ages={"profile": "age_s", "activity": "old_s"})
    report = check_skew(shop.store, "model", log)
    assert of(report, "n_24h").unexplained > 250


def test_windows_that_may_be_old_are_as_old_as_they_say(tmp_path: Path) -> None:
    """Of a view with `cache="ttl"`, windows of 30 s ago with their age; not of a minute ago."""
    shop = Shop(tmp_path, decisions=150, cache="ttl")
    ages = {"profile": "age_s", "activity": "old_s"}
    for seconds, is_fine in ((30, True), (600, False)):
        frame = shop.log.assign(old_s=30.0)
        for row in range(len(frame)):
            moment = frame.loc[row, "decided"] - pd.Timedelta(seconds, "s")
            frame.loc[row, list(WINDOWS)] = shop.windows_at(int(frame.loc[row, "card_id"]), moment)
        report = check_skew(shop.store, "model", replace(shop.served(frame), ages=ages))
        assert report.is_fine == is_fine
        assert of(report, "n_24h").counts["cached"] > 0


def _another_window(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(n_1h=frame["n_24h"])


def _a_unit(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(sum_1h=frame["sum_1h"] * 100)


def _shuffled(frame: pd.DataFrame) -> pd.DataFrame:
    order = np.random.default_rng(0).permutation(len(frame))
    return frame.assign(mean=frame["mean"].to_numpy()[order])


PLANTED: list[tuple[Callable[[pd.DataFrame], pd.DataFrame], str, str]] = [
    (_another_window, "n_1h", "served is the training value of n_24h in 9"),
    (_a_unit, "sum_1h", "served is 100 times the training value in 9"),
    (_shuffled, "mean", "the column holds the right values in other rows"),
]


@pytest.mark.parametrize(("plant", "name", "hint"), PLANTED, ids=["window", "unit", "shuffled"])
def test_a_planted_skew_is_found_and_named(
    shop: Shop, plant: Callable[[pd.DataFrame], pd.DataFrame], name: str, hint: str
) -> None:
    report = check(shop, plant(shop.log))
    assert [one.name for one in report.failed] == [name]
    assert of(report, name).unexplained > 150
    assert of(report, name).interval.low > 0.4
    assert any(said.startswith(hint) for said in of(report, name).hints), of(report, name).hints


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_time_zone_is_found(shop: Shop, hours: int) -> None:
    """Instants that were logged in another time zone: all that changes within an hour is off."""
    move = pd.Timedelta(hours=hours)
    frame = shop.log.assign(at=shop.log["at"] + move, decided=shop.log["decided"] + move)
    report = check(shop, frame)
    failed = {one.name for one in report.failed}
    assert set(WINDOWS) <= failed
    when = "1h earlier" if hours > 0 else "1h later"
    for name in ("n_24h", "sum_1h"):
        assert any(when in hint for hint in of(report, name).hints), of(report, name).hints


def test_features_of_much_later_than_their_instant_are_found(shop: Shop) -> None:
    """Payments of yesterday, scored with the features of today: `decided` does not excuse it."""
    frame = shop.log.assign(at=shop.log["at"] - pd.Timedelta("10h"))
    report = check(shop, frame)
    assert of(report, "n_24h").unexplained > 200
    assert check(shop, frame, read_within_s=12 * 3_600.0).is_fine


def test_a_row_may_take_its_time_to_come_online(shop: Shop) -> None:
    """Profiles that a job brings online five minutes after they are written: the lag says so."""
    frame = shop.log.copy()
    for row in range(len(frame)):
        moment = frame.loc[row, "decided"] - pd.Timedelta(frame.loc[row, "age_s"] + 300, "s")
        profile = shop.profile_at(int(frame.loc[row, "card_id"]), moment)
        frame.loc[row, ["score", "segment"]] = profile["score"], profile["segment"]
    assert not check(shop, frame).is_fine
    report = check(shop, frame, lags_s={"profile": 330.0})
    assert report.is_fine
    assert of(report, "score").counts["not yet online"] > 0


def test_logs_are_read_as_they_are_written(shop: Shop, tmp_path: Path) -> None:
    """CSV text, whole milliseconds, and names with their view: the same answer."""
    shop.log.to_csv(tmp_path / "log.csv", index=False)
    assert check(shop, pd.read_csv(tmp_path / "log.csv")).is_fine
    moments = {
        name: shop.log[name].dt.as_unit("ms").astype("int64").to_numpy()
        for name in ("at", "decided")
    }
    frame = shop.log.assign(**moments).rename(
        columns={"score": "profile__score", "n_1h": "activity__n_1h"}
    )
    assert check(shop, frame).is_fine
    refs = ["profile:score", "activity:n_1h"]
    report = check_skew(shop.store, refs, shop.served(frame))
    assert [one.name for one in report.features] == ["score", "n_1h"]


def test_a_sample_is_compared_where_a_log_is_long(shop: Shop) -> None:
    report = check(shop, rows=50)
    assert (report.rows, report.logged, report.is_fine) == (50, 300, True)
    frame = shop.log.assign(n_1h=shop.log["n_1h"] + 1)
    found = of(check(shop, frame, rows=50), "n_1h")
    assert found.unexplained > 40
    places = [example["row"] for example in found.examples]
    assert frame.loc[places, "n_1h"].tolist() == [one["served"] for one in found.examples]


def test_what_has_no_entity_is_compared_and_what_has_another_name_is_left_out(shop: Shop) -> None:
    """A rate that changes each hour, served up to an hour old; the report names what it leaves."""
    hours = (shop.log["at"] - START).dt.total_seconds() // 3_600
    frame = shop.log.assign(usual=hours - (np.arange(len(hours)) % 2), rate_age_s=3_600.0)
    log = replace(shop.served(frame), ages={"rate": "rate_age_s", "profile": "age_s"})
    report = check_skew(shop.store, "beside", log)
    assert report.is_fine
    assert [one.name for one in report.features] == ["usual", "score"]
    assert of(report, "usual").counts["cached"] == 150
    assert report.left_out == {"other": "it is read under another name or key"}
    older = replace(log, frame=frame.assign(usual=hours - 2))
    assert of(check_skew(shop.store, "beside", older), "usual").unexplained == 300


def test_a_feature_that_is_not_logged_fails(shop: Shop) -> None:
    report = check(shop, shop.log.drop(columns="mean"))
    assert not report.is_fine
    assert report.not_logged == ["activity:mean"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda log: replace(log, at="when"), "has no column 'when', the instants"),
        (lambda log: replace(log, ages={"profile": "no"}), "has no column 'no', ages"),
        (lambda log: replace(log, frame=log.frame.iloc[:0]), "has no rows"),
        (lambda log: replace(log, frame=log.frame.drop(columns="card_id")), "a join key of"),
        (lambda log: replace(log, frame=log.frame.assign(at=7)), "before 2000 or after 2100"),
        (lambda log: replace(log, frame=log.frame.assign(at="noon")), "holds what is no time"),
        (lambda log: replace(log, frame=log.frame.assign(at=None)), "row 1 has no instant"),
        (lambda log: replace(log, frame=log.frame.assign(card_id="x")), "holds what is no INT64"),
        (lambda log: replace(log, frame=log.frame.assign(mean="x")), "row 1 is no number"),
        (lambda log: replace(log, frame=log.frame.assign(age_s=-1.0)), "holds ages that are none"),
        (
            lambda log: replace(
                log, frame=log.frame[["card_id", "at", "decided", "age_s", "layer"]]
            ),
            "holds none of the features",
        ),
    ],
)
def test_what_is_wrong_with_a_log_is_said(
    shop: Shop, change: Callable[[Any], Any], problem: str
) -> None:
    with pytest.raises(SkewError, match=problem):
        check_skew(shop.store, "model", change(shop.served()))


@pytest.mark.parametrize(
    ("features", "spec", "problem"),
    [
        ("nothing", SkewSpec(), "'nothing': is not in the registry. There are: beside, model"),
        (["profile"], SkewSpec(), "write view:feature|Write view:feature"),
        (["profile:height"], SkewSpec(), "has no feature 'height'. It has: score, segment"),
        (["faces:nose"], SkewSpec(), "'faces': is not in the registry"),
        ("model", SkewSpec(lags_s={"faces": 1}), "lag of 'faces'"),
    ],
)
def test_what_is_wrong_with_the_features_is_said(
    shop: Shop, features: Any, spec: SkewSpec, problem: str
) -> None:
    with pytest.raises(SkewError, match=problem):
        check_skew(shop.store, features, shop.served(), spec)
