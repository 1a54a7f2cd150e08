"""The feature repo of the documentation's examples, as `tests/docs/` applies it."""

from datetime import timedelta

from feast import Entity, FeatureView, Field, FileSource, PushSource, ValueType
from feast.types import Bool, Float64, Int64

card = Entity(name="card", join_keys=["card_id"], value_type=ValueType.INT64)
merchant = Entity(name="merchant", join_keys=["merchant_id"], value_type=ValueType.INT64)
account_holder = Entity(name="account", join_keys=["account_id"], value_type=ValueType.INT64)


def view(name: str, entity: Entity, **fields: object) -> FeatureView:
    """A feature view over the Parquet file of its name, which may be pushed to."""
    table = FileSource(
        name=f"{name}_file", path=f"{name}.parquet", timestamp_field="event_timestamp"
    )
    return FeatureView(
        name=name,
        entities=[entity],
        ttl=timedelta(days=365),
        schema=[Field(name=key, dtype=dtype) for key, dtype in fields.items()],
        source=PushSource(name=f"{name}_push", batch_source=table),
    )


card_stats = view("card_stats", card, n_1d=Int64, sum_1d=Float64)
session_clicks = view("session_clicks", card, clicks=Int64)
blocked_cards = view("blocked_cards", card, is_blocked=Bool)
merchant_profile = view("merchant_profile", merchant, age_days=Int64)
merchant_risk = view("merchant_risk", merchant, n=Int64, mean=Float64)
account = view("account", account_holder, balance=Float64)
