"""Card transactions with known frauds, simulated after the Fraud Detection Handbook.

The method is the one published in chapter 3 ("Transaction data simulator") of Y.-A. Le Borgne,
W. Siblini, B. Lebichot and G. Bontempi, "Reproducible Machine Learning for Credit Card Fraud
Detection - Practical Handbook", Universite Libre de Bruxelles, 2022:

1. customers live on a square map and have spending habits of their own; terminals stand on it;
2. a customer pays only at terminals nearer than a radius;
3. each day a customer makes a Poisson number of payments, around noon, of normal amounts;
4. three kinds of fraud are laid over that, each overwriting the label of the one before.

Everything is drawn in whole arrays. The only loops run over days (fraud draws) and over blocks of
customers (to bound memory). Each stage has a random stream of its own, keyed by the seed and the
stage, so that a change to one stage leaves what the others draw from their streams as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import date, datetime, timedelta
from enum import IntEnum
from math import isfinite, pi, sqrt
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

Ints = npt.NDArray[np.int32] | npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

TRANSACTION_DTYPES: Mapping[str, str] = MappingProxyType(
    {
        "TRANSACTION_ID": "int32",
        "TX_DATETIME": "datetime64[ms]",
        "CUSTOMER_ID": "int32",
        "TERMINAL_ID": "int32",
        "TX_AMOUNT": "float64",
        "TX_FRAUD": "int8",
        "TX_FRAUD_SCENARIO": "int8",
    }
)
"""The columns of a transaction table, in order, and their dtypes."""

# The published constants. Lengths are map units, amounts currency units.
_MAP_SIDE = 100.0
_TERMINALS_IN_REACH = 30
_MEAN_AMOUNT_RANGE = (5.0, 100.0)
_STD_PER_MEAN_AMOUNT = 0.5
_MAX_MEAN_TX_PER_DAY = 4.0
_SECONDS_PER_DAY = 86_400
_NOON_S = 43_200
_TIME_OF_DAY_STD_S = 20_000
_LARGE_AMOUNT = 220.0
_TERMINALS_PER_DAY = 2
_TERMINAL_FRAUD_DAYS = 28
_CUSTOMERS_PER_DAY = 3
_CUSTOMER_FRAUD_DAYS = 14
_CUSTOMER_FRAUD_SHARE = 1 / 3
_CUSTOMER_FRAUD_FACTOR = 5

# Pairs of customer and terminal compared at once: 4 million keep each temporary array near 32 MB.
_PAIRS_PER_BLOCK = 4_000_000
_INT32_MAX = 2**31 - 1


class _Stream(IntEnum):
    """The stages that draw numbers; a value, once given, stays, or old seeds change meaning."""

    CUSTOMERS = 0
    TERMINALS = 1
    PAYMENTS = 2
    TERMINAL_FRAUD = 3
    CUSTOMER_FRAUD = 4


@dataclass(frozen=True)
class SimulationSpec:
    """Size, period and seed of one simulation; the defaults are those of the published data.

    n_customers: card holders, at least 1 (5000).
    n_terminals: card readers, at least 1 (10000).
    n_days: whole days from `start`, at least 1 (183).
    start: first day, a `datetime.date` taken as UTC (2018-04-01).
    radius: map units, above 0; a customer pays at terminals strictly nearer than this (5.0). The
        map is 100 x 100, so about n_terminals * pi * radius**2 / 10000 terminals are in reach;
        small worlds need a wider radius, since a customer with none in reach makes no payment.
    seed: whole number, at least 0 (0); equal specs give equal tables.

    Raises ValueError, naming the field, its value and the fix.
    """

    n_customers: int = 5_000
    n_terminals: int = 10_000
    n_days: int = 183
    start: date = date(2018, 4, 1)
    radius: float = 5.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("n_customers", "n_terminals", "n_days"):
            self._require_whole(name, least=1, most=_INT32_MAX)
        self._require_whole("seed", least=0, most=None)
        # A datetime is a date too, but its time of day would be lost without a word.
        if not isinstance(self.start, date) or isinstance(self.start, datetime):
            raise self._bad("start", "must be a date", "give the first day as datetime.date")
        is_number = isinstance(self.radius, int | float) and not isinstance(self.radius, bool)
        if not is_number or not isfinite(self.radius) or self.radius <= 0:
            raise self._bad("radius", "must be a finite number above 0", "give map units")
        self._require_representable()

    def _require_whole(self, name: str, *, least: int, most: int | None) -> None:
        value = getattr(self, name)
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or value < least or (most is not None and value > most):
            limit = f"at least {least}" if most is None else f"from {least} to {most}"
            raise self._bad(name, f"must be a whole number {limit}", "give an int")

    def _require_representable(self) -> None:
        most_expected = self.n_customers * self.n_days * int(_MAX_MEAN_TX_PER_DAY)
        if most_expected > _INT32_MAX:
            limit = f"may expect up to {most_expected} transactions, more than a 32-bit id counts"
            raise self._bad("n_days", limit, "lower n_days or n_customers, or run in parts")
        try:
            self.start + timedelta(days=self.n_days)
        except OverflowError as error:
            limit = f"run past {date.max} from start={self.start}"
            raise self._bad("n_days", limit, "give an earlier start or fewer days") from error

    def _bad(self, name: str, problem: str, fix: str) -> ValueError:
        published = next(field.default for field in fields(self) if field.name == name)
        value = getattr(self, name)
        return ValueError(f"{name}={value!r}: {problem}; {fix}, for example {published}")


def radius_for(n_terminals: int) -> float:
    """The radius within which about as many terminals lie as in the published data.

    That data has 10,000 of them; fewer lie further apart.
    """
    return min(_MAP_SIDE, sqrt(_TERMINALS_IN_REACH * _MAP_SIDE**2 / (pi * n_terminals)))


def customers(spec: SimulationSpec) -> pd.DataFrame:
    """Return the customers' profiles, one row each in order of CUSTOMER_ID.

    Columns: CUSTOMER_ID int32 (0 ... n_customers - 1); HOME_X, HOME_Y float64, map units in
    [0, 100); MEAN_AMOUNT, STD_AMOUNT float64, currency units (5 to 100, and half of it);
    MEAN_TX_PER_DAY float64, 0 to 4; TERMINALS_IN_REACH int32. All but the last depend on the seed
    alone: with a larger n_customers the first rows stay as they are.
    Method: Fraud Detection Handbook, chapter 3, "Customer profiles generation".
    """
    profiles = _customer_profiles(spec)
    return pd.DataFrame(
        {
            "CUSTOMER_ID": np.arange(spec.n_customers, dtype=np.int32),
            "HOME_X": profiles.home[:, 0],
            "HOME_Y": profiles.home[:, 1],
            "MEAN_AMOUNT": profiles.mean_amount,
            "STD_AMOUNT": profiles.std_amount,
            "MEAN_TX_PER_DAY": profiles.mean_tx_per_day,
            "TERMINALS_IN_REACH": _find_reach(spec, profiles).counts.astype(np.int32),
        }
    )


def terminals(spec: SimulationSpec) -> pd.DataFrame:
    """Return the terminals' profiles, one row each in order of TERMINAL_ID.

    Columns: TERMINAL_ID int32 (0 ... n_terminals - 1); LOCATION_X, LOCATION_Y float64, map units
    in [0, 100); CUSTOMERS_IN_REACH int32. All but the last depend on the seed alone: with a larger
    n_terminals the first rows stay as they are.
    Method: Fraud Detection Handbook, chapter 3, "Terminal profiles generation".
    """
    location = _terminal_locations(spec)
    reach = _find_reach(spec, _customer_profiles(spec))
    in_reach = np.bincount(reach.terminals, minlength=spec.n_terminals)
    return pd.DataFrame(
        {
            "TERMINAL_ID": np.arange(spec.n_terminals, dtype=np.int32),
            "LOCATION_X": location[:, 0],
            "LOCATION_Y": location[:, 1],
            "CUSTOMERS_IN_REACH": in_reach.astype(np.int32),
        }
    )


def simulate(spec: SimulationSpec) -> pd.DataFrame:
    """Return the transactions of a simulated world, in time order, with their frauds labelled.

    Columns and dtypes are TRANSACTION_DTYPES: TRANSACTION_ID counts from 0 in time order;
    TX_DATETIME is naive, taken as UTC, in whole seconds; TX_AMOUNT is in currency units with two
    decimals; TX_FRAUD is 1 where TX_FRAUD_SCENARIO is not 0. Scenarios: 1, an amount above 220;
    2, a payment at one of the two terminals drawn each day, for 28 days; 3, a third of the payments
    of the three customers drawn each day, for 14 days, their amounts times 5. Where several apply
    the highest is named. A payment taken by several draws of scenario 3 is multiplied once, and a
    world with fewer terminals or customers than a day draws loses all of them.
    TX_FRAUD_SCENARIO gives the label away: never use it as a feature. `attrs["has_labels"]` is
    True. A world in which nobody pays gives an empty table with the same dtypes.
    Method: Fraud Detection Handbook, chapter 3, "Transaction data simulator".
    """
    payments = _draw_payments(spec)
    frauds = _draw_frauds(spec, payments)
    first_second = np.datetime64(spec.start, "s")
    columns: dict[str, npt.NDArray[Any]] = {
        "TRANSACTION_ID": np.arange(len(payments.second), dtype=np.int32),
        "TX_DATETIME": (first_second + payments.second).astype("datetime64[ms]"),
        "CUSTOMER_ID": payments.customer,
        "TERMINAL_ID": payments.terminal,
        "TX_AMOUNT": frauds.amount,
        "TX_FRAUD": (frauds.scenario > 0).astype(np.int8),
        "TX_FRAUD_SCENARIO": frauds.scenario,
    }
    transactions = pd.DataFrame(columns)
    transactions.attrs["has_labels"] = True
    return transactions


@dataclass(frozen=True)
class _Profiles:
    """Customers' homes (n, 2) and habits (n,), by customer id."""

    home: Floats
    mean_amount: Floats
    std_amount: Floats
    mean_tx_per_day: Floats


@dataclass(frozen=True)
class _Reach:
    """Terminals in reach: those of customer c are terminals[starts[c] : starts[c] + counts[c]]."""

    terminals: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Payments:
    """Genuine payments (n,) in time order; `second` counts from midnight of the first day."""

    second: npt.NDArray[np.int64]
    customer: npt.NDArray[np.int32]
    terminal: npt.NDArray[np.int32]
    amount: Floats


@dataclass(frozen=True)
class _Frauds:
    """Amounts and scenarios (n,) once frauds are laid over the payments."""

    amount: Floats
    scenario: npt.NDArray[np.int8]


def _rng(spec: SimulationSpec, stream: _Stream) -> np.random.Generator:
    sequence = np.random.SeedSequence(spec.seed, spawn_key=(int(stream),))
    return np.random.default_rng(sequence)


def _customer_profiles(spec: SimulationSpec) -> _Profiles:
    # One row of draws a customer, so that more customers leave the first ones unchanged.
    share = _rng(spec, _Stream.CUSTOMERS).random((spec.n_customers, 4))
    low, high = _MEAN_AMOUNT_RANGE
    mean_amount = low + (high - low) * share[:, 2]
    return _Profiles(
        home=_MAP_SIDE * share[:, :2],
        mean_amount=mean_amount,
        std_amount=_STD_PER_MEAN_AMOUNT * mean_amount,
        mean_tx_per_day=_MAX_MEAN_TX_PER_DAY * share[:, 3],
    )


def _terminal_locations(spec: SimulationSpec) -> Floats:
    return _MAP_SIDE * _rng(spec, _Stream.TERMINALS).random((spec.n_terminals, 2))


def _find_reach(spec: SimulationSpec, profiles: _Profiles) -> _Reach:
    """Find all terminals strictly nearer than the radius, customer by customer.

    With terminals sorted by x, those within the radius in x are one slice; only they are measured.
    """
    location = _terminal_locations(spec)
    by_x = np.argsort(location[:, 0], kind="stable").astype(np.int32)
    x, y = location[by_x].T
    home_x, home_y = profiles.home.T
    first = np.searchsorted(x, home_x - spec.radius, side="left")
    width = np.searchsorted(x, home_x + spec.radius, side="right") - first
    counts = np.zeros(spec.n_customers, dtype=np.int64)
    found = []
    rows_per_block = max(1, _PAIRS_PER_BLOCK // spec.n_terminals)
    for start in range(0, spec.n_customers, rows_per_block):
        rows = np.arange(start, min(start + rows_per_block, spec.n_customers))
        owner = np.repeat(rows, width[rows])
        slice_ends = np.cumsum(width[rows])
        gap = np.repeat(first[rows] + width[rows] - slice_ends, width[rows])
        place = gap + np.arange(len(owner))
        distance_squared = (x[place] - home_x[owner]) ** 2 + (y[place] - home_y[owner]) ** 2
        is_near = distance_squared < spec.radius * spec.radius
        counts[rows] = np.bincount(owner[is_near] - start, minlength=len(rows))
        found.append(by_x[place[is_near]])
    return _Reach(np.concatenate(found), np.cumsum(counts) - counts, counts)


def _draw_payments(spec: SimulationSpec) -> _Payments:
    rng = _rng(spec, _Stream.PAYMENTS)
    profiles = _customer_profiles(spec)
    reach = _find_reach(spec, profiles)
    tx_per_day = np.where(reach.counts > 0, profiles.mean_tx_per_day, 0.0)
    tx_counts = rng.poisson(tx_per_day, size=(spec.n_days, spec.n_customers)).ravel()
    day, customer = np.divmod(np.repeat(np.arange(tx_counts.size), tx_counts), spec.n_customers)
    time_of_day_s = rng.normal(_NOON_S, _TIME_OF_DAY_STD_S, size=len(day)).astype(np.int64)
    # The method drops a payment whose time falls outside its day: about 3 % of them.
    is_kept = (time_of_day_s > 0) & (time_of_day_s < _SECONDS_PER_DAY)
    second = (day * _SECONDS_PER_DAY + time_of_day_s)[is_kept]
    order = np.argsort(second, kind="stable")
    customer = customer[is_kept][order]
    choice = (rng.random(len(order)) * reach.counts[customer]).astype(np.int64)
    return _Payments(
        second=second[order],
        customer=customer.astype(np.int32),
        terminal=reach.terminals[reach.starts[customer] + choice],
        amount=_draw_amounts(rng, profiles, customer),
    )


def _draw_amounts(rng: np.random.Generator, profiles: _Profiles, customer: Ints) -> Floats:
    mean_amount = profiles.mean_amount[customer]
    amount = rng.normal(mean_amount, profiles.std_amount[customer])
    # The method draws a negative amount afresh, evenly between nothing and twice the mean.
    is_negative = amount < 0
    amount[is_negative] = rng.random(np.count_nonzero(is_negative)) * 2 * mean_amount[is_negative]
    return np.round(amount, 2)


def _draw_frauds(spec: SimulationSpec, payments: _Payments) -> _Frauds:
    day = payments.second // _SECONDS_PER_DAY
    scenario = np.zeros(len(day), dtype=np.int8)
    scenario[payments.amount > _LARGE_AMOUNT] = 1

    rng = _rng(spec, _Stream.TERMINAL_FRAUD)
    drawn = _draw_daily(rng, spec.n_days, spec.n_terminals, _TERMINALS_PER_DAY)
    for exposed in _exposed_payments(day, payments.terminal, drawn, _TERMINAL_FRAUD_DAYS):
        scenario[exposed] = 2

    rng = _rng(spec, _Stream.CUSTOMER_FRAUD)
    drawn = _draw_daily(rng, spec.n_days, spec.n_customers, _CUSTOMERS_PER_DAY)
    for exposed in _exposed_payments(day, payments.customer, drawn, _CUSTOMER_FRAUD_DAYS):
        n_taken = round(len(exposed) * _CUSTOMER_FRAUD_SHARE)
        scenario[rng.choice(exposed, size=n_taken, replace=False)] = 3

    # Multiplied after all draws, so that overlapping draws do not compound in a small world.
    raised = np.round(payments.amount * _CUSTOMER_FRAUD_FACTOR, 2)
    return _Frauds(np.where(scenario == 3, raised, payments.amount), scenario)


def _draw_daily(rng: np.random.Generator, n_days: int, n_ids: int, n_a_day: int) -> Ints:
    """Draw distinct ids for each day: (n_days, n_a_day), or all ids where there are fewer."""
    size = min(n_a_day, n_ids)
    return np.stack([rng.choice(n_ids, size=size, replace=False) for _ in range(n_days)])


def _exposed_payments(day: Ints, ids: Ints, drawn: Ints, length_days: int) -> Iterator[Ints]:
    """For each day yield the places of the payments, on it and after it, of the ids it drew."""
    first = np.searchsorted(day, np.arange(len(drawn)))
    end = np.searchsorted(day, np.arange(len(drawn)) + length_days)
    for today, (low, high) in enumerate(zip(first, end, strict=True)):
        yield low + np.flatnonzero(np.isin(ids[low:high], drawn[today]))
