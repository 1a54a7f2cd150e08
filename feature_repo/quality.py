"""What the data of this repo must hold, beside what `hotplate quality` derives from features.py.

Expectations are Great Expectations' own classes. What is derived (types, nulls, ranges, uniqueness,
freshness and so on) can be loosened or switched off here, by view and by column. `feast apply`
leaves this file alone: it is named in .feastignore, so that applying needs no Great Expectations.
"""

import great_expectations.expectations as gxe
from feast.types import Float64, Int64, String

from hotplate.quality import ColumnQuality, Covered, TableQuality, ViewQuality

# A profile is written every Monday: more than a week and a day without one is a job that failed.
customer_profile = ViewQuality(
    "customer_profile",
    max_age="8d",
    expectations=[
        gxe.ExpectColumnValuesToBeBetween(
            column="customer_tx_per_day",
            min_value=0,
            max_value=200,
            description="a card makes at most 200 payments a day",
        ),
    ],
)
terminal_profile = ViewQuality("terminal_profile", max_age="8d")

# A score is stamped with the midnight at which its labels are known, a week after the payments:
# the last of them lie ahead.
customer_risk_score = ViewQuality("customer_risk_score", skew="8d")
terminal_risk_score = ViewQuality("terminal_risk_score", skew="8d")

# Whoever pays is known to the profiles; a card that is new this week is not yet.
payments = ViewQuality(
    "card_windows_events",
    max_age="8d",
    covered=[Covered(by="customer_profile", at_least="95%")],
    expectations=[
        gxe.ExpectColumnValuesToBeBetween(
            column="amount", min_value=0, description="no payment is negative"
        ),
    ],
)
# A label arrives a week after its payment, and those of the last week have not yet.
labels = ViewQuality(
    "terminal_windows_events",
    max_age="15d",
    expectations=[
        gxe.ExpectColumnDistinctValuesToEqualSet(
            column="is_fraud", value_set=[0, 1], description="a label is 0 or 1, and there are both"
        ),
    ],
)

# -- tables that are no feature views -------------------------------------------------------------

# What is decided, as pipelines/fraud/ledger.py writes it:
#   hotplate quality run decisions --sql decisions=sqlite:///decisions.db#decisions
decisions = TableQuality(
    "decisions",
    schema={
        "transaction_id": String,
        "customer_id": Int64,
        "terminal_id": Int64,
        "kind": String,
        "amount": Float64,
        "at_ms": Int64,
        "decided_ms": Int64,
        "score": Float64,
        "decision": String,
        "reason": String,
        "model_version": String,
        "layer": String,
        "inputs": String,
        "ages_s": String,
    },
    keys=["customer_id", "terminal_id"],
    unique=["transaction_id"],
    private=["transaction_id", "inputs"],
    columns={
        "score": ColumnQuality(nulls=0, range=(0, 1)),
        "amount": ColumnQuality(nulls=0, range=(0, None)),
        "kind": ColumnQuality(values=["payment", "check", "payout", "refund"]),
        "decision": ColumnQuality(nulls=0, values=["approve", "review", "decline"]),
        "model_version": ColumnQuality(nulls=0),
    },
    expectations=[
        gxe.ExpectColumnPairValuesAToBeGreaterThanB(
            column_A="decided_ms",
            column_B="at_ms",
            or_equal=True,
            mostly=0.99,
            description="a payment is decided after it was made",
        ),
    ],
)

# Raw card transactions, in the columns of the Fraud Detection Handbook. Their times say no zone.
transactions = TableQuality(
    "transactions",
    schema={
        "TRANSACTION_ID": Int64,
        "TX_DATETIME": "timestamp",
        "CUSTOMER_ID": Int64,
        "TERMINAL_ID": Int64,
        "TX_AMOUNT": Float64,
        "TX_FRAUD": Int64,
    },
    keys=["CUSTOMER_ID", "TERMINAL_ID"],
    timestamp="TX_DATETIME",
    unique=["TRANSACTION_ID"],
    off=["zone"],
    columns={
        "TX_AMOUNT": ColumnQuality(nulls=0, range=(0, None)),
        "TX_FRAUD": ColumnQuality(nulls=0, range=(0, 1)),
    },
)
