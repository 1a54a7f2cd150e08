"""A page of what was found: one HTML file that needs nothing from the network."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, Final

from hotplate.durations import format_duration
from hotplate.pages import document, drawn, section, table
from hotplate.skew.charts import drift_charts, skew_charts
from hotplate.skew.compare import EXPLAINED, REASONS, FeatureSkew
from hotplate.skew.drift import DriftReport, FeatureDrift
from hotplate.skew.errors import SkewError
from hotplate.skew.report import SkewReport

__all__ = ["write_page"]

_STYLE: Final = """main { max-width: 68rem; }
p { max-width: 50rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .2rem; }
.tile b { color: inherit; }
.tile b.good, .good { color: #00734f; } .tile b.bad, .bad { color: #c2330b; }
th, td { padding: .3rem .6rem; font-size: .92rem; }
th { font-size: .85rem; }
td:first-child { white-space: nowrap; min-width: 0; }
td.words, th.words { text-align: left; white-space: normal; min-width: 12rem; }
"""


def write_page(
    path: Path,
    *,
    skew: SkewReport | None = None,
    drift: DriftReport | None = None,
    title: str = "",
    words: str = "",
) -> None:
    """Write a page of plots.

    Args:
        path: the HTML file.
        skew, drift: what was found; at least one of them.
        title: of the page.
        words: a line below it: where the tables came from.

    Raises:
        SkewError: plotly is not installed, or the file cannot be written.
    """
    tiles, body = "", ""
    try:
        if skew is not None:
            tiles += _skew_tiles(skew)
            body += _skew_sections(skew)
        if drift is not None:
            tiles += _drift_tiles(drift)
            body += _drift_sections(drift)
        made = datetime.now(UTC)
        shown = escape(title or _title(skew, drift))
        said = escape(" · ".join(one for one in (f"{made:%Y-%m-%d %H:%M} UTC", words) if one))
        head = f'<h1>{shown}</h1><p class="soft">{said}</p><div class="tiles">{tiles}</div>'
        page = document(title or _title(skew, drift), head + body, _STYLE)
    except ImportError as error:
        raise SkewError(
            where="the page",
            problem="needs plotly, which is not installed",
            fix="pip install 'feast-hotplate[demo]'",
        ) from error
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, "utf-8")
    except OSError as error:
        raise SkewError(
            where=str(path), problem=f"cannot be written: {error.strerror}", fix="Name another."
        ) from error


def _title(skew: SkewReport | None, drift: DriftReport | None) -> str:
    if skew is not None and drift is not None:
        return "Skew and drift of the features"
    return "Served against training features" if skew is not None else "Drift of the features"


def _tile(value: str, text: str, mood: str = "") -> str:
    kind = f' class="{mood}"' if mood else ""
    return f'<div class="tile"><b{kind}>{escape(value)}</b>{escape(text)}</div>'


# -- skew -----------------------------------------------------------------------------------------


def _skew_tiles(report: SkewReport) -> str:
    values = sum(one.rows for one in report.features)
    same = sum(one.same for one in report.features)
    explained = sum(one.explained for one in report.features)
    unexplained = sum(one.unexplained for one in report.features)
    return "".join(
        (
            _tile(f"{report.rows:,}", f"decisions compared, of {report.logged:,} in the log"),
            _tile(f"{same / values:.2%}", "of the values are the same in training"),
            _tile(f"{explained:,}", "values differ and are explained"),
            _tile(f"{unexplained:,}", "values nothing explains", "bad" if unexplained else "good"),
        )
    )


def _skew_sections(report: SkewReport) -> str:
    since, until = (_moment(at) for at in (report.since_ms, report.until_ms))
    words = (
        f"For each decision from {since} to {until} training was asked for the same entities as of "
        "the same instant. A model that is trained on other values than it is given will be wrong "
        "in ways that no test of the model shows."
    )
    if any(report.read_after_s):
        half, most = (_duration(seconds) for seconds in report.read_after_s)
        words += (
            f" Half of the decisions were made within {half} of their instant, 99 % within {most}: "
            "what happens in between is seen by them, and not by training."
        )
    problems = [f"{name} is not in the log" for name in report.not_logged]
    problems += [f"{view} was not compared: {why}" for view, why in report.left_out.items()]
    if report.thinned:
        problems.append(
            f"{report.thinned:,} rows have more changes in their time than were looked at"
        )
    noted = "".join(f"<p><b>{escape(one)}.</b></p>" for one in problems)
    sections = [section("Served against training, feature by feature", words, noted)]
    for name, chart, title, said in skew_charts(report):
        sections.append(section(title, said, drawn(name, chart)))
    hinted = sorted(report.features, key=lambda one: -one.unexplained)[:_HINTED]
    if any(one.unexplained for one in hinted):
        shown = [one for one in report.features if one.unexplained and one in hinted]
        sections.append(section("What nothing explains", _HINTS, _hints(shown)))
    sections.append(section("In numbers", "", _skew_table(report) + _meanings()))
    if report.by_layer:
        rows = [
            [layer, f"{count:,}", f"{bad:,}", f"{bad / count:.2%}"]
            for layer, (count, bad) in report.by_layer.items()
        ]
        head = ("answered by", "decisions", "with an unexplained value", "share")
        sections.append(section("By layer", "", table(head, rows)))
    return "".join(sections)


_HINTS: Final = (
    "Some values as they were served and as training has them, by their row in the log (the first "
    "is 0), and what is true of most such values of the feature."
)


_HINTED: Final = 10  # the features with most of them


def _hints(features: Sequence[FeatureSkew]) -> str:
    made = ""
    for one in features:
        made += f"<h3>{escape(one.name)}: {one.unexplained:,} of {one.rows:,}</h3>"
        made += "".join(f"<p>{escape(_sentence(hint))}</p>" for hint in one.hints)
        rows = [
            [f"row {said['row']:,}", _value(said["served"]), _value(said["training"])]
            for said in one.examples
        ]
        made += table(("", "served", "training"), rows)
    return made


def _skew_table(report: SkewReport) -> str:
    used = [name for name in EXPLAINED if any(one.counts[name] for one in report.features)]
    head = ["feature", "same", *used, "unexplained", "95 % interval", "greatest difference"]
    rows = [
        [
            one.name,
            f"{one.same:,}",
            *(f"{one.counts[name]:,}" for name in used),
            f"{one.unexplained:,}",
            f"{one.interval.low:.2%} to {one.interval.high:.2%}",
            "" if one.greatest is None else f"{one.greatest:.6g}",
        ]
        for one in report.features
    ]
    return table(head, rows)


def _meanings() -> str:
    said = "".join(f"<dt>{escape(name)}</dt><dd>{escape(to)}</dd>" for name, to in REASONS.items())
    return f'<dl class="soft">{said}</dl>'


# -- drift ----------------------------------------------------------------------------------------


def _drift_tiles(report: DriftReport) -> str:
    drifted = len(report.of("drifted", "missing"))
    return _tile(
        f"{drifted} of {len(report.features)}",
        f"features have drifted; {len(report.of('shifted'))} more have shifted",
        "bad" if drifted else "good",
    )


def _drift_sections(report: DriftReport) -> str:
    words = (
        f"{report.rows[1]:,} current rows against {report.rows[0]:,} of the reference. A feature "
        "has moved where a measure is beyond what matters and beyond what chance does at so many "
        f"rows; chance alone calls anything at all moved in {report.spec.level:.0%} of such "
        "comparisons at the most."
    )
    sections = [section("Distributions against the reference", words, "")]
    for name, chart, title, said in drift_charts(report):
        sections.append(section(title, said, drawn(name, chart)))
    rows = [_drift_row(one) for one in report.features]
    head = ("feature", "verdict", "measure", "found", "by chance", "nulls", "outside", "worth rows")
    sections.append(section("Drift in numbers", _DRIFT_WORDS, table(head, rows)))
    return "".join(sections)


_DRIFT_WORDS: Final = (
    "The measure that decided, and what it exceeds by chance. Outside: current values beyond the "
    "reference's range, or of categories that it does not have. Worth rows: as many rows of "
    "different owners would say as much."
)
_SHOWN: Final = {"psi": "PSI", "ks": "KS", "js": "JS, bits", "nulls": "nulls"}


def _drift_row(one: FeatureDrift) -> list[str]:
    # the measure that is furthest beyond what is tolerated
    measures = sorted(
        one.measures,
        key=lambda of: (of.verdict == one.verdict, of.value / max(of.chance, of.shifted, 1e-12)),
    )
    if not measures:
        return [one.name, one.verdict, *[""] * 6]
    said = measures[-1]
    return [
        one.name,
        one.verdict,
        _SHOWN[said.name],
        f"{said.value:.3f}",
        f"{said.chance:.3f}",
        f"{one.nulls[0]:.1%} to {one.nulls[1]:.1%}" if any(one.nulls) else "none",
        f"{one.outside:.1%}",
        f"{one.effective[0]:,} / {one.effective[1]:,}",
    ]


# -- parts ----------------------------------------------------------------------------------------


def _duration(seconds: float) -> str:
    whole_s = max(0, round(seconds))
    ns = whole_s * 1_000_000_000 if whole_s >= 10 else round(1_000 * seconds) * 1_000_000
    return format_duration(max(0, ns))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith("?") else ".")


def _value(value: Any) -> str:
    if value is None:
        return "null"
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _moment(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1_000, UTC):%Y-%m-%d %H:%M:%S} UTC"
