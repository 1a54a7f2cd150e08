"""The page of an advice: what every group's ttl would cost and how stale it would be, as plots.

One HTML file that needs nothing from the network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from hotplate.advice.lru import Room
from hotplate.advice.predictions import GroupForecast, Prediction, Replayed
from hotplate.advice.recommendation import Limits, Recommendation
from hotplate.advice.replay import EVENT, TTL
from hotplate.durations import NO_LIMIT_NS, format_duration
from hotplate.pages import INK, document, plot
from hotplate.sizes import format_bytes

__all__ = ["page"]

_HIT: Final = "#0072b2"
_STALE: Final = "#d9480f"
_EVENT: Final = "#009e73"
_GRID: Final = "#e5e7eb"
_FONT: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
_DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash")
_LAYOUT: Final[dict[str, Any]] = {
    "template": "none",
    "font": {"family": _FONT, "size": 13, "color": INK},
    "margin": {"l": 70, "r": 24, "t": 64, "b": 56},
    "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "hovermode": "x unified",
}


def page(
    replayed: Replayed,
    recommended: Mapping[str, Recommendation],
    room: Room,
    limits: Limits,
    notes: Sequence[str],
    made: str,
) -> str:
    """The page.

    Args:
        replayed: the predictions.
        recommended: group -> what to do.
        room: the deployment's memory.
        limits: how stale answers may be.
        notes: what is to be known of it.
        made: when, and of which log.
    """
    said = "".join(f"<li>{escape(note)}</li>" for note in notes)
    body = [
        "<h1>How long to keep what</h1>",
        f'<p class="soft">{escape(made)}</p>',
        _overview(replayed, recommended, room, limits),
        *(
            _section(number, forecast, recommended[name], replayed.rooms, limits)
            for number, (name, forecast) in enumerate(replayed.groups.items())
        ),
        f"<section><h2>To be known of it</h2><ul>{said}</ul></section>" if said else "",
    ]
    return document("How long to keep what", "".join(body))


def _overview(
    replayed: Replayed, recommended: Mapping[str, Recommendation], room: Room, limits: Limits
) -> str:
    header = ("group", "ttl now", "ttl", "hit rate", "source reads", "stale", "memory")
    rows = []
    for name, forecast in replayed.groups.items():
        now, chosen = forecast.now(room), recommended[name].chosen
        kept = chosen or next((one for one in forecast.of(room, TTL) if not one.ttl_ns), None)
        rows.append(
            (
                name,
                _ttl(now.ttl_ns),
                "keep nothing" if chosen is None else _ttl(chosen.ttl_ns),
                _change(now, kept, lambda one: f"{one.hit_rate:.1%}"),
                _change(now, kept, lambda one: f"{one.source_reads_s:,.1f}/s"),
                _change(now, kept, _stale),
                format_bytes(forecast.size_bytes[room]),
            )
        )
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    words = (
        f"{replayed.survey.requests:,} requests of {replayed.processes:,} "
        f"process{'' if replayed.processes == 1 else 'es'} in "
        f"{format_duration(max(1, round(replayed.seconds)) * 10**9)}, replayed under every ttl. "
        f"Recommended is the ttl that reads the source least with at most {limits}."
    )
    return (
        f"<section><h2>Recommended</h2><p>{escape(words)}</p><div class='scroll'><table><thead>"
        f"<tr>{head}</tr></thead><tbody>{body}</tbody></table></div></section>"
    )


def _change(now: Prediction, chosen: Prediction | None, show: Any) -> str:
    before, after = show(now), "-" if chosen is None else show(chosen)
    return before if before == after else f"{before} → {after}"


def _stale(one: Prediction) -> str:
    return "not known" if one.stale_share is None else f"{one.stale_share:.2%}"


def _ttl(ttl_ns: int) -> str:
    return format_duration(ttl_ns)


def _section(
    number: int,
    forecast: GroupForecast,
    said: Recommendation,
    rooms: Sequence[Room],
    limits: Limits,
) -> str:
    # the deployment's own first: its line is the solid one
    rooms = [rooms[0], *sorted(rooms[1:], key=lambda room: -room.max_bytes)]
    figure = _figure(forecast, said, rooms, limits)
    words = f"{forecast.reads:,} reads of rows. " + (
        "Nothing is kept: " if said.chosen is None else f"{_ttl(said.chosen.ttl_ns)}: "
    )
    words += said.why + "."
    if said.event is not None:
        words += (
            f" With coherence: event and a ttl of {_ttl(said.event.ttl_ns)} the source is read "
            f"{said.event.source_reads_s:,.1f} times a second and no answer is stale."
        )
    return plot(f"group-{number}", figure, forecast.name, words)


def _figure(
    forecast: GroupForecast, said: Recommendation, rooms: Sequence[Room], limits: Limits
) -> go.Figure:
    is_known = forecast.changes is not None
    heights = [0.62, 0.38] if is_known else [1.0]
    figure = make_subplots(
        rows=len(heights), cols=1, shared_xaxes=True, row_heights=heights, vertical_spacing=0.06
    )
    own = EVENT if said.chosen is not None and said.chosen.coherence == EVENT else TTL
    ends = [one.ttl_ns for one in forecast.predictions if 0 < one.ttl_ns < NO_LIMIT_NS]
    # "none" stands to the right of all others
    last_s = max(ends, default=10**9) / 1e9 * 3
    _add_hit_rates(figure, forecast, said, rooms, own, last_s)
    if is_known:
        _add_stale(figure, forecast.of(rooms[0], own), limits, last_s)
    texts = {
        _place(one.ttl_ns, last_s): _ttl(one.ttl_ns) for one in forecast.predictions if one.ttl_ns
    }
    ticks = sorted(texts)
    figure.update_xaxes(
        type="log",
        tickvals=ticks,
        ticktext=[texts[tick] for tick in ticks],
        gridcolor=_GRID,
        zeroline=False,
    )
    figure.update_xaxes(title="ttl", row=len(heights))
    figure.update_yaxes(gridcolor=_GRID, zeroline=False, title_standoff=14)
    figure.update_layout(height=460 if is_known else 340, **_LAYOUT)
    return figure


def _add_hit_rates(
    figure: go.Figure,
    forecast: GroupForecast,
    said: Recommendation,
    rooms: Sequence[Room],
    own: str,
    last_s: float,
) -> None:
    """The upper part: a line for each bound of memory, and where one is and should be."""
    for place, room in enumerate(rooms):
        name = f"hit rate, memory {format_bytes(room.max_bytes)}"
        dash = _DASHES[place % len(_DASHES)]
        line = _line(forecast.of(room, own), name, _HIT, dash, last_s)
        figure.add_trace(line, row=1, col=1)
    heard = forecast.of(rooms[0], EVENT)
    if own == TTL and heard:
        line = _line(heard, "coherence: event", _EVENT, "dot", last_s)
        figure.add_trace(line, row=1, col=1)
    for one, name, symbol in (
        (forecast.now(rooms[0]), "now", "circle-open"),
        (said.chosen, "recommended", "diamond"),
    ):
        if one is not None and one.ttl_ns:
            figure.add_trace(_point(one, name, symbol, last_s), row=1, col=1)
    figure.update_yaxes(title="answered from memory", tickformat=".0%", range=[0, 1.03], row=1)


def _add_stale(
    figure: go.Figure, found: Sequence[Prediction], limits: Limits, last_s: float
) -> None:
    """The lower part: what was stale, and how much may be."""
    figure.add_trace(_stale_line(found, last_s), row=2, col=1)
    figure.add_hline(
        y=limits.stale_share,
        line={"color": _STALE, "width": 1, "dash": "dash"},
        annotation={"text": "limit", "font": {"color": _STALE, "size": 12}},
        row=2,
        col=1,
    )
    figure.update_yaxes(title="stale answers", tickformat=".2~%", rangemode="tozero", row=2)


def _place(ttl_ns: int, last_s: float) -> float:
    return last_s if ttl_ns >= NO_LIMIT_NS else ttl_ns / 1e9


def _line(
    found: Sequence[Prediction], name: str, color: str, dash: str, last_s: float
) -> go.Scatter:
    shown = [one for one in found if one.ttl_ns]
    return go.Scatter(
        x=[_place(one.ttl_ns, last_s) for one in shown],
        y=[one.hit_rate for one in shown],
        name=name,
        mode="lines",
        line={"color": color, "width": 2.2, "dash": dash},
        customdata=[f"{one.source_reads_s:,.1f}" for one in shown],
        hovertemplate="%{y:.2%}, source reads %{customdata}/s",
    )


def _stale_line(found: Sequence[Prediction], last_s: float) -> go.Scatter:
    shown = [one for one in found if one.ttl_ns]
    ages = [
        f"half of them up to {one.stale_p50_s:,.1f} s, 99 % up to {one.stale_p99_s:,.1f} s, "
        f"none above {one.stale_longest_s:,.1f} s"
        for one in shown
    ]
    return go.Scatter(
        x=[_place(one.ttl_ns, last_s) for one in shown],
        y=[one.stale_share for one in shown],
        name="stale answers",
        mode="lines",
        line={"color": _STALE, "width": 2.2},
        customdata=ages,
        hovertemplate="%{y:.3%} stale: %{customdata}",
    )


def _point(one: Prediction, name: str, symbol: str, last_s: float) -> go.Scatter:
    return go.Scatter(
        x=[_place(one.ttl_ns, last_s)],
        y=[one.hit_rate],
        name=f"{name}: {_ttl(one.ttl_ns)}",
        mode="markers",
        marker={"size": 12, "symbol": symbol, "color": INK, "line": {"width": 2}},
        hoverinfo="skip",
    )
