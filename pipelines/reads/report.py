"""The page: one HTML file that needs nothing from the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from string import Template
from typing import Any

from hotplate.pages import document, plot, table, tiles_of
from pipelines.made_with import made_with
from pipelines.reads import charts
from pipelines.reads.replay import Recording
from pipelines.reads.results import GroupResult, Results, buckets
from pipelines.reads.wording import GROUP_HEADINGS, count, duration, equality, seconds, share, times

__all__ = ["PLOTS", "page"]

PLOTS = ("latency", "hit-rate", "source-reads", "age")
"""Ids of the plots, in the page's order."""

_PAGE = Template("""\
<h1>The same $requests card payments, with and without the cache</h1>
<p class="soft">$subtitle</p>
<div class="tiles">$tiles</div>
<section><h2>In numbers</h2>$numbers</section>
<section><h2>Group by group</h2>$groups
<p class="soft"><i>Source reads</i> are rows asked of the online store, one a feature view and
entity. <i>Forgotten</i> are rows dropped because they were pushed. <i>Bound</i> is the ttl: the age
up to which a value may be served after it was read from the online store; <i>past bound</i> counts
values served older than it.</p></section>
$plots
<section><h2>Are the answers the same?</h2>$answers</section>
<section><h2>How it was measured</h2>$method</section>
""")


def page(found: Recording, results: Results, made_at: str) -> str:
    """The page as HTML.

    Args:
        found, results: of the replay.
        made_at: date and time, for the reader.
    """
    parts = buckets(found.blocks, found.duration_s)
    figures = (
        charts.latency(found, results),
        charts.hit_rates(parts, results),
        charts.source_reads(parts, results),
        charts.ages(found, results),
    )
    body = _PAGE.substitute(
        requests=count(results.answers.compared),
        subtitle=made_with(made_at, results.machine),
        tiles=_tiles(results),
        numbers=table(("", "bare Feast", "with Hotplate", "ratio"), _number_rows(results)),
        groups=_group_table(results),
        plots="".join(
            plot(name, figure, *text)
            for name, figure, text in zip(PLOTS, figures, _texts(results), strict=True)
        ),
        answers=_answers(results),
        method=_method(results),
    )
    return document("Hotplate: reads", body)


def _tiles(results: Results) -> str:
    past_bound = sum(group.past_bound for group in results.groups.values())
    tiles = (
        (times(results.ratio("p50")), "lower median latency"),
        (times(results.read_ratio()), "fewer source reads: rows asked of the online store"),
        (share(results.from_memory), "of requests answered without any"),
        (count(past_bound), "values served past their bound"),
    )
    return tiles_of(tiles)


# -- tables -------------------------------------------------------------------------------------


def _number_rows(results: Results) -> list[tuple[str, ...]]:
    bare, cached = results.latency["bare"], results.latency["cached"]
    rows = []
    if bare is not None and cached is not None:
        for name, part in (("p50", "half"), ("p90", "90 %"), ("p99", "99 %")):
            shown = [duration(getattr(run, f"{name}_us")) for run in (bare, cached)]
            text = f"latency {name} ({part} of the requests are faster)"
            rows.append((text, *shown, times(results.ratio(name))))
        for key, text in (
            ("cached_from_memory", "… of requests answered from memory, p50"),
            ("cached_with_reads", "… of requests that had to ask, p50"),
        ):
            some = results.latency[key]
            if some is not None:
                ratio = times(bare.p50_us / some.p50_us)
                rows.append((text, duration(bare.p50_us), duration(some.p50_us), ratio))
    reads = results.source_reads_per_request
    shown = [f"{reads[run]:.2f}" for run in ("bare", "cached")]
    rows.append(("source reads per request", *shown, times(results.read_ratio())))
    return rows


def _group_table(results: Results) -> str:
    rows = [(name, *_group_row(group)) for name, group in results.groups.items()]
    return table(GROUP_HEADINGS, rows)


def _group_row(group: GroupResult) -> tuple[str, ...]:
    return (
        share(group.hit_rate),
        count(group.loads),
        count(group.invalidated),
        seconds(group.max_age_s),
        seconds(group.ttl_s),
        count(group.past_bound),
    )


# -- plots --------------------------------------------------------------------------------------


def _texts(results: Results) -> tuple[tuple[str, str], ...]:
    memory, asked = results.latency["cached_from_memory"], results.latency["cached_with_reads"]
    humps = ""
    if memory is not None and asked is not None:
        humps = (
            f" The cache has two humps: requests that memory answers (half of them within "
            f"{duration(memory.p50_us)}), and those that lack at least one value and ask the "
            f"online store for it (half within {duration(asked.p50_us)})."
        )
        if results.from_memory < 0.99:
            humps += (
                " The p99 lies in the second hump: a miss costs a round trip, as every request "
                "does without the cache."
            )
    reads = results.source_reads_per_request
    return (
        (
            "How long does a request take?",
            f"How long requests took to get their {results.asked['features']} features. The time "
            "axis is logarithmic: 1 ms lies as far from 100 µs as 100 µs from 10 µs. A solid line "
            "marks the p50, a dashed one the p99." + humps,
        ),
        (
            "How often does memory have the answer?",
            "The cache starts empty, so the lines start low and climb as cards and terminals come "
            "back. Groups with a short bound stay lower: their values expire and are read again. "
            "customer_spending is also forgotten whenever a payment is pushed.",
        ),
        (
            "How much work is left for the online store?",
            f"Bare Feast asks for {reads['bare']:.0f} rows with every request, one a feature view. "
            f"With the cache it was {reads['cached']:.2f} on average, reloads in the background "
            "included: more at the start, while the cache fills.",
        ),
        (
            "How old is what was served?",
            "Every dot is a served value (a sample, the oldest included), by its age when served; "
            "a box holds the middle half of them. The black mark is the group's bound, and none "
            "may lie right of it. A long bound is not reached in a short replay. The axis is "
            "logarithmic; what is younger than 10 ms stands at its left end.",
        ),
    )


# -- words --------------------------------------------------------------------------------------


def _answers(results: Results) -> str:
    found, writes = results.answers, results.writes
    outside = results.groups.get(writes["outside_group"])
    bound = seconds(outside.ttl_s if outside is not None else None)
    points = [
        "Every request was answered by both, and the answers and scores compared value by value.",
        *equality(found.compared, found.explained, found.unexplained, bound),
        f"{count(writes['pushed_rows'])} rows of customer_spending were pushed through Feast "
        "meanwhile. The cache forgets what is written through it before the push returns.",
    ]
    if found.explained:
        points.append(
            f"The other program changed terminal_risk ({count(writes['outside_rows'])} rows) "
            "half-way, and the cache was not told. The last answer from before came "
            f"{seconds(found.last_different_s)} after the change; the greatest difference of a "
            f"score was {found.max_score_difference:.2f}."
        )
    return _list(points) + f"<p>{escape(_model_words(results.model))}</p>"


def _list(points: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(point)}</li>" for point in points) + "</ul>"


def _model_words(model: Mapping[str, Any]) -> str:
    words = (
        f"The model is a logistic regression fitted to {count(model['training_rows'])} payments of "
        "the second week before the features' moment, so that it knows nothing of what is replayed."
    )
    if model["auc_bare"] is None:
        return words
    return (
        f"{words} Its area under the ROC curve over the replayed payments: "
        f"{model['auc_bare']:.4f} bare, {model['auc_cached']:.4f} cached."
    )


def _method(results: Results) -> str:
    machine = results.machine
    facts = {
        "machine": f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}",
        "online store": machine["store"],
        "versions": ", ".join(f"{name} {found}" for name, found in machine["versions"].items()),
        "again": results.settings["command"],
    }
    shown = "".join(f"<dt>{escape(key)}</dt><dd>{escape(said)}</dd>" for key, said in facts.items())
    return f"{_list(_method_points(results))}<dl>{shown}</dl>"


def _method_points(results: Results) -> Sequence[str]:
    settings, data = results.settings, results.data
    traffic = (
        "in the order in which they arrived"
        if not settings["skew"]
        else f"with cards drawn by a Zipf law of exponent {settings['skew']:g} (the payments' own "
        "traffic is nearly even, and hits less: --skew 0 replays it as it came)"
    )
    pace = (
        f"{settings['rate']:g} requests a second on average"
        if settings["rate"]
        else "as fast as they were answered"
    )
    return (
        f"Payments: {data['origin']}; {count(data['customers'])} cards and "
        f"{count(data['terminals'])} terminals with features. Requests are taken {traffic}; the "
        f"busiest 1 % of the cards make {share(data['top_share'])} of them.",
        "Both are Feast's own FeatureStore, in one process, over the same online store on this "
        "machine; one has Hotplate around it. Over a network bare reads take longer.",
        f"They take turns at blocks of {settings['block']} requests, {pace}; the first "
        f"{settings['warm_up']} of each block are not timed, because Feast rebuilds a cache of its "
        "own whenever another store has asked in between.",
        "A latency covers get_online_features(...).to_dict() for one payment: "
        f"{results.asked['views']} feature views, {results.asked['features']} features. Scoring, "
        "and reading the ages for this page, come after it.",
        "Source reads of bare Feast are what it asks for (views times rows); the cache's are "
        "counted by the cache.",
        f"{settings['push_share']:.0%} of the payments are pushed into customer_spending through "
        "the cached store."
        + (
            " Half-way the bare store, in the place of another process's batch job, writes the "
            "next day's terminal_risk; the cache is not told."
            if settings["has_outside_write"]
            else ""
        ),
    )
