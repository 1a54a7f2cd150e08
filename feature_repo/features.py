"""The features of a card fraud model, and how fresh the cache must keep each of them.

Two entities, and two services. `fraud_v1` reads four plain feature views; what Hotplate needs of
them is the map `FRESHNESS`, and one line in each view: `tags=FRESHNESS.tags(...)`. `feast apply`
publishes it, and every process that serves these features follows it. The rest is plain Feast.

`fraud_v2` adds what plain Feast cannot serve: time windows over the payments themselves, exact at
the millisecond at which they are read, in training and in serving alike.

The Parquet files under data/ are written by `python -m pipelines.reads` and, for `fraud_v2`, by
`python -m pipelines.fraud features`.
"""

from collections.abc import Sequence
from datetime import timedelta

from feast import Entity, FeatureService, FeatureView, Field, FileSource, PushSource, ValueType
from feast.aggregation import Aggregation
from feast.types import Float64, Int64, String

from hotplate import TTLMap, windowed_view

# How long a value may be served after it was read from the online store. Ask of each group: how
# wrong may a score be, for how long, because this value has changed since?
FRESHNESS = TTLMap(
    {
        "customer_profile": "5m",  # habits: change over weeks
        "customer_spending": "30s",  # changes with every payment, and is pushed as it changes
        "terminal_profile": "10m",
        # Rewritten by a batch job. In the last 30 s of the two minutes a value is still served, and
        # is reloaded in the background, so that a busy terminal's risk never has to be waited for.
        "terminal_risk": {"ttl": "2m", "stale_while_revalidate": "30s"},
        # One number an entity, from all labels known by last midnight.
        "risk_score": {"ttl": "10m", "stale_while_revalidate": "1m"},
    }
)

# Feast's own `ttl` is another thing: how old the EVENT may be that a row describes. It bounds how
# far back `feast materialize-incremental` looks the first time; the cache does not ask for it.
EVENT_AGE = timedelta(days=365)

# How long a window's row may be kept at the most. It is dropped before that when an event arrives,
# in every process, and when time moves a window: so it is exact however long it is kept.
KEPT = timedelta(minutes=10)

customer = Entity(name="customer", join_keys=["customer_id"], value_type=ValueType.INT64)
terminal = Entity(name="terminal", join_keys=["terminal_id"], value_type=ValueType.INT64)


def parquet(name: str) -> FileSource:
    """The table of a feature view, beside this file."""
    return FileSource(
        name=f"{name}_file", path=f"data/{name}.parquet", timestamp_field="event_timestamp"
    )


customer_profile = FeatureView(
    name="customer_profile",
    description="Habits of a card holder",
    entities=[customer],
    ttl=EVENT_AGE,
    schema=[
        Field(name="customer_mean_amount", dtype=Float64),
        Field(name="customer_std_amount", dtype=Float64),
        Field(name="customer_tx_per_day", dtype=Float64),
        Field(name="customer_terminals", dtype=Int64),
    ],
    source=parquet("customer_profile"),
    tags=FRESHNESS.tags("customer_profile"),
)

customer_spending = FeatureView(
    name="customer_spending",
    description="Payments of a card over the last 1, 7 and 30 days",
    entities=[customer],
    ttl=EVENT_AGE,
    schema=[
        Field(name="customer_tx_1d", dtype=Int64),
        Field(name="customer_tx_7d", dtype=Int64),
        Field(name="customer_tx_30d", dtype=Int64),
        Field(name="customer_mean_amount_1d", dtype=Float64),
        Field(name="customer_mean_amount_7d", dtype=Float64),
        Field(name="customer_mean_amount_30d", dtype=Float64),
    ],
    # A push through Feast is written to the store AND forgotten by the cache, in one call.
    source=PushSource(name="customer_spending_push", batch_source=parquet("customer_spending")),
    tags=FRESHNESS.tags("customer_spending"),
)

terminal_profile = FeatureView(
    name="terminal_profile",
    description="Usual traffic of a card terminal",
    entities=[terminal],
    ttl=EVENT_AGE,
    schema=[
        Field(name="terminal_mean_amount", dtype=Float64),
        Field(name="terminal_tx_per_day", dtype=Float64),
        Field(name="terminal_customers", dtype=Int64),
    ],
    source=parquet("terminal_profile"),
    tags=FRESHNESS.tags("terminal_profile"),
)

terminal_risk = FeatureView(
    name="terminal_risk",
    description="Payments and share of frauds over 1, 7 and 30 days, as known a week later",
    entities=[terminal],
    ttl=EVENT_AGE,
    schema=[
        Field(name="terminal_tx_1d", dtype=Int64),
        Field(name="terminal_tx_7d", dtype=Int64),
        Field(name="terminal_tx_30d", dtype=Int64),
        Field(name="terminal_fraud_share_1d", dtype=Float64),
        Field(name="terminal_fraud_share_7d", dtype=Float64),
        Field(name="terminal_fraud_share_30d", dtype=Float64),
    ],
    source=parquet("terminal_risk"),
    tags=FRESHNESS.tags("terminal_risk"),
)

fraud_v1 = FeatureService(
    name="fraud_v1",
    description="What the fraud model of this repo is scored with",
    features=[customer_profile, customer_spending, terminal_profile, terminal_risk],
)

# -- windows over payments ------------------------------------------------------------------------


def payment_source(name: str, table: str) -> PushSource:
    """What is pushed, over the table of all that was: `arrived` is when it became known."""
    return PushSource(
        name=name,
        batch_source=FileSource(
            name=f"{name}_file",
            path=f"data/{table}.parquet",
            timestamp_field="event_timestamp",
            created_timestamp_column="arrived",
        ),
    )


def over(prefix: str, column: str, functions: Sequence[str], *spans: str) -> list[Aggregation]:
    """Aggregations of a column, named as in `card_mean_7d`; a span is "10m", "1h" or "7d"."""
    units = {"m": "minutes", "h": "hours", "d": "days"}
    return [
        Aggregation(
            column=column,
            function=function,
            time_window=timedelta(**{units[span[-1]]: int(span[:-1])}),
            name=f"{prefix}_{function}_{span}",
        )
        for span in spans
        for function in functions
    ]


# `profile="exact"`: a card has a few payments a day, so even 30 days are cheap to keep one by one.
card_windows, card_events = windowed_view(
    name="card_windows",
    description="Payments of a card: how many, and their mean amount",
    entities=[customer],
    source=payment_source("payments", "payments"),
    event_id="transaction_id",
    schema=[
        Field(name="customer_id", dtype=Int64),
        Field(name="transaction_id", dtype=String),
        Field(name="amount", dtype=Float64),
    ],
    aggregations=over("card", "amount", ("count", "mean"), "1d", "7d", "30d"),
    profile="exact",
    ttl=KEPT,
    lateness=timedelta(days=1),  # a scorer that was away for a night still records what it missed
)

# More windows over the same payments: what happens within a session.
card_session, _ = windowed_view(
    name="card_session",
    description="Payments of a card within minutes",
    entities=[customer],
    events=card_events,
    aggregations=[
        *over("card", "amount", ("count", "sum"), "10m"),
        *over("card", "amount", ("count", "max"), "1h"),
    ],
    profile="exact",
    ttl=KEPT,
)

# Whether a payment was a fraud is known a week later: the windows end a week ago, and a label that
# arrives within eight days counts.
terminal_windows, terminal_events = windowed_view(
    name="terminal_windows",
    description="Payments at a terminal a week ago and before: how many, and their share of frauds",
    entities=[terminal],
    source=payment_source("labels", "labels"),
    event_id="transaction_id",
    schema=[
        Field(name="terminal_id", dtype=Int64),
        Field(name="transaction_id", dtype=String),
        Field(name="is_fraud", dtype=Int64),
    ],
    aggregations=over("label", "is_fraud", ("count", "mean"), "1d", "7d", "30d"),
    delay=timedelta(days=7),
    lateness=timedelta(days=8),
    profile="exact",
    ttl=KEPT,
)


def risk_score(entity: Entity) -> FeatureView:
    """One number an entity: its share of frauds so far, drawn towards that of everybody."""
    name = f"{entity.name}_risk_score"
    return FeatureView(
        name=name,
        description=f"Risk of a {entity.name}, by all labels known at midnight",
        entities=[entity],
        ttl=EVENT_AGE,
        schema=[Field(name=name, dtype=Float64)],
        source=parquet(name),
        tags=FRESHNESS.tags("risk_score"),
    )


customer_risk_score, terminal_risk_score = risk_score(customer), risk_score(terminal)

fraud_handbook = FeatureService(
    name="fraud_handbook",
    description="The features of the Fraud Detection Handbook, for `pipelines.fraud benchmark`",
    features=[card_windows, terminal_windows],
)

fraud_v2 = FeatureService(
    name="fraud_v2",
    description="Windows, habits and risk: what `python -m pipelines.fraud` trains and scores with",
    features=[
        card_windows,
        card_session,
        terminal_windows,
        customer_profile,
        terminal_profile,
        customer_risk_score,
        terminal_risk_score,
    ],
)
