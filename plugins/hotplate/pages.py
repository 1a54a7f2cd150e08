"""Parts of the pages of plots: one HTML file each, that needs nothing from the network.

Drawing needs plotly, which is imported when something is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, Final

__all__ = ["INK", "document", "drawn", "figure_of", "plot", "section", "table", "tiles_of"]

INK: Final = "#1f2937"
_GRID: Final = "#e5e7eb"
_FONT: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
# No mode bar: it covers the plots on a phone, and has a button that would upload the data.
_CONFIG: Final = {"displayModeBar": False, "responsive": True, "plotlyServerURL": ""}

_STYLE: Final = """:root { --ink: #1f2937; --soft: #5b6472; --line: #e2e5ea; --hot: #d9480f; }
* { box-sizing: border-box; }
html { overflow-y: scroll; } /* plots are drawn to the width that is left beside the bar */
body { margin: 0; background: #f6f7f9; color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .4rem; }
h2 { font-size: 1.2rem; margin: 0 0 .4rem; }
p { margin: .4rem 0; max-width: 46rem; }
.soft { color: var(--soft); font-size: .92rem; }
section { background: #fff; border: 1px solid var(--line); border-radius: 10px;
  padding: 1.2rem clamp(.8rem, 3vw, 1.3rem); margin-top: 1.2rem; overflow: hidden; }
.tiles { display: grid; gap: .8rem; margin-top: 1.2rem;
  grid-template-columns: repeat(auto-fit, minmax(12rem, 1fr)); }
.tile { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: .9rem 1rem; }
.tile b { display: block; font-size: 1.75rem; line-height: 1.2; color: var(--hot); }
.scroll { overflow-x: auto; -webkit-overflow-scrolling: touch; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .38rem .7rem; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th { font-weight: 600; color: var(--soft); font-size: .88rem; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
td:first-child { white-space: normal; min-width: 8.5rem; }
tr:last-child td { border-bottom: 0; }
ul { margin: .4rem 0; padding-left: 1.2rem; }
li { margin: .25rem 0; max-width: 46rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: .4rem 0 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
"""


def document(title: str, body: str, style: str = "") -> str:
    """A page, with all that its plots need.

    Args:
        title: of the page.
        body: HTML.
        style: CSS beside that of all pages.

    Raises:
        ImportError: plotly is not installed.
    """
    import plotly.offline

    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>
{_STYLE}{style}</style>
<script>{plotly.offline.get_plotlyjs()}</script>
</head>
<body><main>
{body}</main></body></html>
"""


def tiles_of(tiles: Sequence[tuple[str, str]]) -> str:
    """A number and what it is, one beside the other."""
    return "".join(
        f'<div class="tile"><b>{escape(value)}</b>{escape(text)}</div>' for value, text in tiles
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; its first column names the rows."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    drawn = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{drawn}</div>'


def drawn(name: str, figure: Any) -> str:
    """A plot, without a section of its own.

    Args:
        name: of the element, one of its kind on the page.
        figure: of plotly.
    """
    return str(
        figure.to_html(
            full_html=False,
            include_plotlyjs=False,
            div_id=name,
            config=_CONFIG,
            default_width="100%",
        )
    )


def section(title: str, words: str, body: str) -> str:
    """A part of the page, with a line of words if there are any."""
    said = f"<p>{escape(words)}</p>" if words else ""
    return f"<section><h2>{escape(title)}</h2>{said}{body}</section>\n"


def plot(name: str, figure: Any, title: str, words: str) -> str:
    """A section with a plot."""
    return section(title, words, drawn(name, figure))


def figure_of(height: int) -> Any:
    """An empty plot in the pages' style."""
    import plotly.graph_objects as go

    axis: dict[str, Any] = {
        "gridcolor": _GRID,
        "linecolor": "#9ca3af",
        "zeroline": False,
        "title_standoff": 12,
    }
    return go.Figure(
        layout={
            "template": "none",
            "height": height,
            "font": {"family": _FONT, "size": 13, "color": INK},
            "margin": {"l": 64, "r": 24, "t": 48, "b": 56},
            "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "hoverlabel": {"font": {"family": _FONT}},
            "xaxis": axis,
            "yaxis": axis,
        }
    )
