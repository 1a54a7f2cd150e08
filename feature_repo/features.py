"""The features of a card fraud model, and how fresh the cache must keep each of them.

Four feature views of two entities. What Hotplate needs is the map `FRESHNESS`, and one line in each
view: `tags=FRESHNESS.tags(...)`. `feast apply` publishes it, and every process that serves these
features follows it. The rest is plain Feast.

The Parquet files under data/ are written by `python -m pipelines.demo`.
"""

from datetime import timedelta

from feast import Entity, FeatureService, FeatureView, Field, FileSource, PushSource, ValueType
from feast.types import Float64, Int64

from hotplate import TTLMap

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
    }
)

# Feast's own `ttl` is another thing: how old the EVENT may be that a row describes. It bounds how
# far back `feast materialize-incremental` looks the first time; the cache does not ask for it.
EVENT_AGE = timedelta(days=365)

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
