"""A report as one HTML page that needs no network: no scripts, no fonts, no images."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final

from hotplate.quality.outcome import (
    ERROR,
    FAILED,
    PASSED,
    SKIPPED,
    Checked,
    Outcome,
    Report,
    percent,
)

__all__ = ["page"]

_STYLE: Final = """:root { --ink: #1f2937; --soft: #5b6472; --line: #e2e5ea; --ground: #f6f7f9;
  --good: #2b8a3e; --bad: #c92a2a; --meh: #8a6d00; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 76rem; margin: 0 auto; padding: 2rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .3rem; }
h2 { font-size: 1.2rem; margin: 0 0 .6rem; }
p { margin: .3rem 0; }
code { font: .86em/1.4 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  overflow-wrap: anywhere; }
.soft { color: var(--soft); font-size: .92rem; overflow-wrap: anywhere; }
.tiles { display: grid; gap: .8rem; margin-top: 1.2rem;
  grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); }
.tile, section, details.view { background: #fff; border: 1px solid var(--line);
  border-radius: 10px; }
.tile { padding: .9rem 1rem; }
.tile b { display: block; font-size: 1.7rem; line-height: 1.2; }
section { padding: 1.1rem 1.2rem; margin-top: 1.2rem; }
.good { color: var(--good); } .bad { color: var(--bad); } .meh { color: var(--meh); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .93rem;
  font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .42rem .8rem .42rem 0;
  border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--soft); font-size: .86rem; white-space: nowrap; }
tr:last-child td { border-bottom: 0; }
td.number { text-align: right; white-space: nowrap; } th.number { text-align: right; }
td.name { white-space: nowrap; font-weight: 600; }
td.column { min-width: 11rem; max-width: 18rem; } td.says { min-width: 17rem; }
td.seen { min-width: 19rem; } td.place { min-width: 16rem; }
code.row { display: block; }
.of { display: block; color: var(--soft); font-size: .84rem; font-weight: 400; }
.badge { display: inline-block; min-width: 4.6rem; text-align: center; padding: .06rem .5rem;
  border-radius: 99px; font-size: .82rem; font-weight: 600; }
.badge.good { background: #ebfbee; } .badge.bad { background: #fff0f0; }
.badge.meh { background: #fff9db; }
details.view { margin-top: .8rem; }
details.view > summary { cursor: pointer; padding: .8rem 1.1rem; display: flex; gap: .9rem;
  align-items: baseline; flex-wrap: wrap; }
details.view > summary b { font-size: 1.02rem; }
details.view > div { padding: 0 1.1rem 1rem; }
a { color: inherit; }
@media print { details.view { break-inside: avoid; } }
"""
_ROWS: Final = 3
_SHOWN: Final = {
    PASSED: ("good", "passed"),
    FAILED: ("bad", "failed"),
    ERROR: ("bad", "error"),
    SKIPPED: ("meh", "skipped"),
}


def page(report: Report) -> str:
    """The page's text."""
    title = f"Data quality of {report.project}"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>
{_STYLE}</style>
</head>
<body><main>
<h1>{escape(title)}: {_verdict(report)}</h1>
<p class="soft">{escape(_made(report))}</p>
{_tiles(report)}
{_faults(report)}
<section><h2>Views and tables</h2>{_overview(report)}</section>
{"".join(_view(one) for one in report.checked)}
</main></body></html>
"""  # noqa: E501


def _verdict(report: Report) -> str:
    if report.is_good:
        return '<span class="good">as expected</span>'
    return '<span class="bad">not as expected</span>'


def _made(report: Report) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    return f"Judged as of {report.moment:%Y-%m-%d %H:%M} {report.moment:%Z} with {versions}"


def _tiles(report: Report) -> str:
    rows = sum(one.rows or 0 for one in report.checked)
    judged = sum(len(one.outcomes) for one in report.checked)
    bad = len(report.bad) + sum(bool(one.problem) for one in report.checked)
    tiles = [
        (f"{len(report.checked):,}", "views and tables", ""),
        (f"{rows:,}", "rows", ""),
        (f"{judged:,}", "expectations", ""),
        (
            f"{bad:,}",
            "of them not met" if bad != 1 else "of them is not met",
            "bad" if bad else "good",
        ),
    ]
    drawn = "".join(
        f'<div class="tile"><b class="{kind}">{value}</b>{text}</div>'
        for value, text, kind in tiles
    )
    return f'<div class="tiles">{drawn}</div>'


def _faults(report: Report) -> str:
    unread = [one for one in report.checked if one.problem]
    if not report.bad and not unread:
        return ""
    rows = [
        f'<tr><td class="name">{_link(one.view)}</td><td></td><td>{escape(one.problem)}</td>'
        '<td class="number bad">unread</td><td></td></tr>'
        for one in unread
    ]
    rows += [_fault(one) for one in report.bad]
    head = _head(
        ("View", ""), ("Column", ""), ("Expected", ""), ("Failing", "number"), ("Seen", "")
    )
    return f"<section><h2>What is wrong</h2>{_table(head, rows)}</section>"


def _fault(one: Outcome) -> str:
    return (
        f'<tr><td class="name">{_link(one.view)}</td>{_cells(one)}'
        f'<td class="number bad">{_share(one)}</td><td class="seen">{_seen(one)}</td></tr>'
    )


def _overview(report: Report) -> str:
    head = _head(
        ("", ""), ("", ""), ("Rows", "number"), ("Passed", "number"), ("Failed", "number"),
        ("Skipped", "number"), ("Seconds", "number"), ("Data", ""),
    )  # fmt: skip
    rows = [
        f'<tr><td class="name">{_link(one.view)}</td><td>{_badge(_status(one))}</td>'
        + "".join(f'<td class="number">{escape(cell)}</td>' for cell in _numbers(one))
        + f'<td class="place soft">{escape(one.where)}</td></tr>'
        for one in report.checked
    ]
    return _table(head, rows)


def _numbers(one: Checked) -> tuple[str, ...]:
    rows = "-" if one.rows is None else f"{one.rows:,}"
    failed = one.count(FAILED) + one.count(ERROR)
    counts = (f"{count:,}" for count in (one.count(PASSED), failed, one.count(SKIPPED)))
    return (rows, *counts, f"{one.seconds:.1f}")


def _view(one: Checked) -> str:
    rows = "unread" if one.rows is None else f"{one.rows:,} rows"
    head = _head(("", ""), ("Column", ""), ("Expected", ""), ("Failing", "number"), ("Seen", ""))
    lines = [
        f"<tr><td>{_badge(outcome.status)}</td>{_cells(outcome)}"
        f'<td class="number">{_share(outcome)}</td><td class="seen">{_seen(outcome)}</td></tr>'
        for outcome in one.outcomes
    ]
    said = f"<p>{escape(one.problem)}</p>" if one.problem else _table(head, lines)
    if not one.has_reference and not one.problem:
        said = (
            '<p class="meh">No reference says how it was: ranges, nulls and texts are not judged.'
            f"</p>{said}"
        )
    is_open = " open" if not one.is_good else ""
    return (
        f'<details class="view" id="{escape(one.view)}"{is_open}><summary>{_badge(_status(one))}'
        f'<b>{escape(one.view)}</b><span class="soft">{rows}, {len(one.outcomes):,} expectations'
        f"</span></summary><div>{said}</div></details>\n"
    )


def _status(one: Checked) -> str:
    return PASSED if one.is_good else (ERROR if one.problem else FAILED)


def _badge(status: str) -> str:
    kind, text = _SHOWN[status]
    return f'<span class="badge {kind}">{text}</span>'


def _cells(one: Outcome) -> str:
    return (
        f'<td class="column"><code>{escape(one.column)}</code></td>'
        f'<td class="says">{_expected(one)}</td>'
    )


def _expected(one: Outcome) -> str:
    return f'{escape(one.says)}<span class="of"><code>{escape(one.expectation)}</code></span>'


def _share(one: Outcome) -> str:
    if one.status not in (PASSED, FAILED) or one.share is None:
        return ""
    of = f'<span class="of">{one.failing or 0:,} of {one.of or 0:,}</span>'
    return f"{percent(one.share)}{of}"


def _seen(one: Outcome) -> str:
    rows = [example for example in one.examples if example.startswith("{")]
    parts = [f'<code class="row">{escape(example)}</code>' for example in rows[:_ROWS]]
    seen = "".join(parts) or ", ".join(
        f"<code>{escape(example)}</code>" for example in one.examples
    )
    seen = seen or escape(one.observed)
    return seen + (f'<span class="of">{escape(one.hint)}</span>' if one.hint else "")


def _link(view: str) -> str:
    return f'<a href="#{escape(view)}">{escape(view)}</a>'


def _head(*cells: tuple[str, str]) -> str:
    return "".join(f'<th class="{kind}">{escape(text)}</th>' for text, kind in cells)


def _table(head: str, rows: Iterable[str]) -> str:
    body = "".join(rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'  # noqa: E501
