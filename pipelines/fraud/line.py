"""One micro-batch from records to answers, the same for a stream, a file and HTTP requests.

1. Records are checked; what is no payment becomes a dead letter.
2. Payments that have a decision keep it.
3. The others are decided, all at once; but a payment waits until those of its card before it are
   recorded, so that a burst of a card is seen as one, whatever it arrived with.
4. Decisions are committed, with the last of them dead letters and the position of the source.
5. Only then are payments recorded in the windows. That is done again for the last ones when a job
   begins, because the one before may have died between the two; a second delivery counts once.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import redis
from feast import FeatureStore

import hotplate
from hotplate.errors import ServerError
from pipelines.fraud.decide import Decided, Decider
from pipelines.fraud.ledger import Ledger
from pipelines.fraud.payments import (
    CHECK,
    OF_REQUEST,
    DeadLetter,
    Payments,
    events_of,
    read_records,
)

__all__ = ["EVENTS", "PASSING", "Line", "Processed"]

EVENTS: Final = "card_windows_events"
_RECORDED_AGAIN_MS: Final = 120_000
_WAIT_S: Final = 0.5
_MOMENT_S: Final = 0.0002
_OF_ANOTHER: Final = (
    "transaction_id is that of another payment, or of another kind of request: give each its own"
)
PASSING: Final = (ServerError, OSError, redis.ConnectionError, redis.TimeoutError)
"""What a server that is down or slow raises, Feast's own Redis store included."""


@dataclass
class Processed:
    """What became of the records of a micro-batch.

    Attributes:
        payments: all of them, those that had a decision too.
        answers: transaction id -> its decision: a row of the ledger, or part of one.
        dead: records that are no payments.
        decided: those that were new, in the turns in which they were decided.
        repeated: how many had a decision already.
        seconds: what each step took.
    """

    payments: Payments
    answers: dict[str, Mapping[str, Any]]
    dead: list[DeadLetter]
    decided: Sequence[Decided]
    repeated: int
    seconds: dict[str, float] = field(default_factory=dict)


class Line:
    """Takes micro-batches through all steps; of one thread at a time.

    Args:
        store: the feature store.
        decider: says which decider to use, asked once a micro-batch: another version of the model
            may go live in between.
        ledger: where decisions go.
        source: by which name the ledger knows where payments come from.
        restamp: take payments as made just now.
        together: decide all payments of a batch at once, also those of one card: sooner, and they
            do not see each other.
        say: told of faults that are waited for.
    """

    def __init__(
        self,
        store: FeatureStore,
        decider: Callable[[], Decider],
        ledger: Ledger,
        source: str,
        *,
        restamp: bool = False,
        together: bool = False,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._hot = hotplate.of(store)
        self._decider = decider
        self._ledger = ledger
        self._source = source
        self._restamp = restamp
        self._together = together
        self._say = say
        self.counts: Counter[str] = Counter()

    def begin(self) -> str | None:
        """Make good what a job before may have left undone; returns the source's position."""
        latest = self._ledger.latest(self._source, _RECORDED_AGAIN_MS)
        names = ("transaction_id", "customer_id", "amount", "at_ms")
        paid = [tuple(row[name] for name in names) for row in latest if row["kind"] != CHECK]
        if paid:
            self._record(events_of(*map(list, zip(*paid, strict=True))))
        return self._ledger.position(self._source)

    def process(
        self,
        records: Sequence[tuple[str, Mapping[str, Any]]],
        position: str | None = None,
        unread: Sequence[DeadLetter] = (),
    ) -> Processed:
        """Take records through all steps.

        Args:
            records: (place, fields), as `read_records`.
            position: how far the source has been read with them.
            unread: what came with them and has no fields, such as text that is not JSON.

        Raises:
            LedgerError: the database refuses.
        """
        steps: dict[str, float] = {}
        clock = time.perf_counter
        at = clock()

        def lap(step: str) -> None:
            nonlocal at
            steps[step], at = steps.get(step, 0.0) + clock() - at, clock()

        now_ms = time.time_ns() // 1_000_000
        payments, dead = read_records(records, now_ms, restamp=self._restamp)
        dead += unread
        known = self._ledger.known(payments.transaction_ids) if len(payments) else {}
        is_new, others = _firsts(payments, known)
        new = payments.chosen(is_new)
        dead += others
        lap("check")
        decided: list[Decided] = []
        rows: list[dict[str, Any]] = []
        overtaken = 0
        decider = self._decider()  # one for all turns: a batch is of one version
        left = _turns(new) if len(new) and not self._together else [new][: len(new)]
        if not left:
            self._ledger.record(self._source, position, [], dead)
            lap("commit")
        while left:
            turn = left.pop(0)
            if decided:
                self._let_pass(turn, now_ms)
            decided.append(self._decide(decider, turn))
            lap("decide")
            own = decided[-1].rows()
            rows += own
            ends = (None, ()) if left else (position, dead)
            refuse = partial(_of_others, turn, own)
            standing = self._ledger.record(self._source, ends[0], own, ends[1], refuse)
            is_recorded = turn.is_recorded
            if standing:  # another process decided some of them first: its word counts
                known |= standing
                overtaken += len(standing)
                letters = refuse(standing)
                others += letters
                dead += letters
                is_recorded = is_recorded & _as_they_stand(turn, standing, letters)
            lap("commit")
            if is_recorded.any():
                self._record(turn.chosen(is_recorded).events())
                lap("record")
        repeated = len(payments) - len(new) - len(others) + overtaken
        self._count(decided, repeated, dead)
        self.counts["decided"] -= overtaken
        answers = {**{row["transaction_id"]: row for row in rows}, **known}
        is_asked = np.ones(len(payments), np.bool_)
        if others:
            refused = {letter.place for letter in others}
            is_asked = np.array([place not in refused for place in payments.places], np.bool_)
        return Processed(payments.chosen(is_asked), answers, dead, decided, repeated, steps)

    def _let_pass(self, payments: Payments, now_ms: int) -> None:
        """Wait until what was just recorded lies in the past; payments of no time are made now."""
        recorded_ms = time.time_ns() // 1_000_000
        while (passed_ms := time.time_ns() // 1_000_000) <= recorded_ms:
            time.sleep(_MOMENT_S)
        is_now = np.ones(len(payments), np.bool_) if self._restamp else payments.at_ms == now_ms
        payments.at_ms[is_now] = passed_ms

    def _decide(self, decider: Decider, payments: Payments) -> Decided:
        while True:
            try:
                return decider.decide(payments)
            except PASSING as error:
                self._wait("features cannot be read, payments wait", error)

    def _record(self, events: pa.Table) -> None:
        while True:
            try:
                found = self._hot.ingest(EVENTS, events)
                for reason, count in found.dropped.items():
                    self.counts[f"not in windows: {reason}"] += count
                    self._say(f"{count} payments are decided, and count in no window: {reason}")
                return
            except PASSING as error:
                self._wait("payments cannot be recorded in the windows", error)

    def _wait(self, what: str, error: Exception) -> None:
        self._say(f"{what}: {' '.join(str(error).split())}")
        self.counts["waits"] += 1
        time.sleep(_WAIT_S)

    def _count(self, decided: Sequence[Decided], repeated: int, dead: Sequence[DeadLetter]) -> None:
        counts = self.counts
        counts["repeated"] += repeated
        counts["dead"] += len(dead)
        for turn in decided:
            counts["decided"] += len(turn.scores)
            counts.update(turn.decisions)
            counts["hits"] += sum(layer == "hit" for layer in turn.layers)


def _turns(payments: Payments) -> list[Payments]:
    """Payments in turns: in each none comes after a recorded one of its card."""
    is_recorded = payments.is_recorded
    order = np.argsort(payments.customer_ids, kind="stable")
    cards, recorded = payments.customer_ids[order], is_recorded[order].astype(np.int64)
    before = np.cumsum(recorded) - recorded
    starts = np.flatnonzero(np.concatenate([[True], cards[1:] != cards[:-1]]))
    sizes = np.diff(np.concatenate([starts, [len(cards)]]))
    turn = np.empty(len(payments), np.int64)
    turn[order] = before - np.repeat(before[starts], sizes)
    return [payments.chosen(turn == number) for number in range(int(turn.max()) + 1)]


def _firsts(
    payments: Payments, known: Mapping[str, Mapping[str, Any]]
) -> tuple[Any, list[DeadLetter]]:
    """Which payments are decided now: each transaction once, and none that was before.

    Returns:
        A mask; and those whose id is that of another payment, or of another kind of request.
    """
    seen = {
        transaction_id: tuple(row[name] for name in OF_REQUEST)
        for transaction_id, row in known.items()
    }
    chosen = np.ones(len(payments), np.bool_)
    dead = []
    requests = zip(
        payments.places,
        payments.transaction_ids,
        payments.customer_ids.tolist(),
        payments.terminal_ids.tolist(),
        payments.amounts.tolist(),
        payments.kinds.tolist(),
        strict=True,
    )
    for at, (place, transaction_id, *request) in enumerate(requests):
        before = seen.get(transaction_id)
        if before is None:
            seen[transaction_id] = tuple(request)
            continue
        chosen[at] = False
        if before != tuple(request):
            dead.append(_letter(place, transaction_id))
    return chosen, dead


def _of_others(
    payments: Payments,
    rows: Sequence[Mapping[str, Any]],
    standing: Mapping[str, Mapping[str, Any]],
) -> list[DeadLetter]:
    """Those of payments whose id another process gave to another one at the same time."""
    return [
        _letter(place, row["transaction_id"])
        for place, row in zip(payments.places, rows, strict=True)
        if (found := standing.get(row["transaction_id"])) is not None
        and any(found[name] != row[name] for name in OF_REQUEST)
    ]


def _as_they_stand(
    payments: Payments, standing: Mapping[str, Mapping[str, Any]], refused: Sequence[DeadLetter]
) -> Any:
    """Give payments the times with which others decided them, so that each counts once.

    Returns:
        Which of them are not refused.
    """
    for at, transaction_id in enumerate(payments.transaction_ids):
        if transaction_id in standing:
            payments.at_ms[at] = standing[transaction_id]["at_ms"]
    places = {letter.place for letter in refused}
    return np.array([place not in places for place in payments.places], np.bool_)


def _letter(place: str, transaction_id: str) -> DeadLetter:
    return DeadLetter(place, _OF_ANOTHER, f"{{'transaction_id': {transaction_id!r}}}")
