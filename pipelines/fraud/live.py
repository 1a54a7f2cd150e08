"""The version of the model that is live, followed while payments are scored.

A version goes live by a file that names it (`Models.make_current`). A thread looks at that file's
date once a second; no payment waits for a look. Where another version is named, it is loaded and
checked beside the live one, decides the latest payments once more so that its scores and code are
warm, and takes over between two micro-batches: `Line` asks for the decider once a batch, and gets
one or the other. Whatever a decider answers, from its own cache too, is of its own version, because
outputs are kept by version. What cannot be used leaves the live version where it is.

Outputs of the version before are asked for no more. They are let go in steps: a million of them
dropped at once would stop all threads for most of a second, 200 stop them for 0.7 ms. A rollback
meanwhile asks for them again, and what is still there is as good as it was. Those in the shared
tier stay: other processes may still ask that version, and they expire.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np
from feast import FeatureStore

from hotplate.errors import HotplateError
from pipelines.fraud.bundle import Bundle, ModelRefused, Models
from pipelines.fraud.decide import Decider, Layers, Scores, scorer_of
from pipelines.fraud.ledger import Ledger, LedgerError
from pipelines.fraud.line import PASSING
from pipelines.fraud.payments import Payments, as_made_now

__all__ = ["LiveModel", "decider_of", "followed", "proven", "warm"]

LOOK_EVERY_S: Final = 1.0
_WARMED_WITH: Final = 256
_WARMED_AT_ONCE: Final = 64
_RELEASED_AT_ONCE: Final = 200
_BETWEEN_RELEASES_S: Final = 0.005


class LiveModel:
    """The decider that is in use; another one once another version is current.

    Called by one thread, and followed by another.

    Args:
        models: the versions.
        make: makes the decider of one.
        warm: readies it before it takes over.
        version: which one to begin with; the current one if left out.
        say: told of what has changed, and of what was refused.

    Attributes:
        refused: why the current version is not live; "" where it is.
        counts: `switched`, `refused`.

    Raises:
        ModelRefused: the first version cannot be used.
    """

    def __init__(
        self,
        models: Models,
        make: Callable[[Bundle], Decider],
        *,
        warm: Callable[[Decider], object] = lambda decider: None,
        version: str | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._models, self._make, self._warm, self._say = models, make, warm, say
        self._seen = models.stamp()
        self._decider = make(models.load(version))
        self._left: list[Decider] = []
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.refused = ""
        self.counts: Counter[str] = Counter()

    def __call__(self) -> Decider:
        return self._decider

    def __repr__(self) -> str:
        return f"LiveModel({self.version!r}{', refused another' if self.refused else ''})"

    @property
    def version(self) -> str:
        """The one that is live."""
        return self._decider.bundle.version

    def start(self, every_s: float = LOOK_EVERY_S) -> None:
        """Follow the current version from now on.

        Args:
            every_s: how often to look.
        """
        self._thread = threading.Thread(
            target=self._follow, args=(every_s,), name="live-model", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Follow it no more."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(5)

    def _follow(self, every_s: float) -> None:
        while not self._ended.wait(_BETWEEN_RELEASES_S if self._left else every_s):
            self.look()
            self.release()

    def look(self) -> bool:
        """See whether another version is current; if so, make it live.

        Returns:
            Whether one went live.
        """
        stamp = self._models.stamp()
        if stamp == self._seen:
            return False
        try:
            version = self._models.current()
            decider = self._ready(version)
        except Exception as error:  # noqa: BLE001 - whatever a version does, the live one goes on
            is_said = isinstance(error, ModelRefused)
            self._refuse(str(error) if is_said else f"{type(error).__name__}: {error}")
            return False  # it may pass, or its files are on their way: looked at again
        if self._models.stamp() != stamp:
            return False  # another one already: looked at again
        self.refused = ""
        self._seen = stamp
        if decider is None:
            return False
        self._switch(decider)
        return True

    def _ready(self, version: str) -> Decider | None:
        """The decider of a version, checked and warm; None where it is live already."""
        if version == self.version:
            return None
        decider = self._make(self._models.load(version))
        self._warm(decider)
        return decider

    def _switch(self, decider: Decider) -> None:
        before = self._decider
        self._decider = decider
        self._left.append(before)
        self.counts["switched"] += 1
        self._say(f"model {self.version} is live, in the place of {before.bundle.version}")

    def _refuse(self, why: str) -> None:
        if why != self.refused:
            self.counts["refused"] += 1
            self._say(f"model {self.version} stays live, another was refused: {why}")
        self.refused = why

    def release(self) -> None:
        """Let go of some outputs of versions that are live no more."""
        kept = []
        for decider in self._left:
            outputs = decider.outputs
            if outputs is None or outputs is self._decider.outputs:
                continue  # after a rollback they are asked for again
            if outputs.release(_RELEASED_AT_ONCE):
                kept.append(decider)
        self._left = kept


def proven(bundle: Bundle, device: str, layers: Layers) -> Scores:
    """The scorer of a version, tried.

    Raises:
        ModelRefused: it cannot be used here, or does not give one probability a payment.
    """
    scorer = scorer_of(bundle, device, is_fast=layers.scorer)
    scores = scorer.score(np.full((2, len(bundle.inputs)), np.nan, np.float32))
    if scores.shape != (2,) or not ((scores >= 0) & (scores <= 1)).all():
        raise ModelRefused(
            f"model {bundle.version!r} does not give one probability a payment: train it with "
            "objective binary:logistic"
        )
    return scorer


def decider_of(store: FeatureStore, bundle: Bundle, device: str, layers: Layers) -> Decider:
    """The decider of a version.

    Raises:
        ModelRefused: it cannot be used here, or the store does not serve what it reads.
    """
    scorer = proven(bundle, device, layers)
    try:
        bundle.check(store)
    except ModelRefused:
        store.refresh_registry()  # what it reads may have been applied since the process began
    return Decider(store, bundle, scorer, layers)


def warm(decider: Decider, ledger: Ledger, pause: Callable[[float], object]) -> int:
    """Let a decider decide the latest payments once more, as if made now; nobody is told.

    Args:
        decider: whose features, scores and code are to be warm.
        ledger: knows the latest payments.
        pause: called between blocks, with seconds, so that others get their turn.

    Returns:
        Of how many distinct payments; 0 where the ledger or the store does not answer, for then
        the version goes live cold.

    Raises:
        ModelRefused: a score is no number.
    """
    try:
        payments = as_made_now(ledger.recent(_WARMED_WITH))
        for at in range(0, len(payments), _WARMED_AT_ONCE):
            block = payments.chosen(np.arange(at, min(at + _WARMED_AT_ONCE, len(payments))))
            _check_scores(decider, block)
            pause(_BETWEEN_RELEASES_S)
    except (LedgerError, HotplateError, *PASSING):
        return 0
    return len(payments)


def _check_scores(decider: Decider, payments: Payments) -> None:
    if not np.isfinite(decider.decide(payments).scores).all():
        raise ModelRefused(
            f"model {decider.bundle.version!r} gives scores that are no numbers for payments of "
            "the last minutes: compare it with the one before on held-out payments"
        )


@contextmanager
def followed(
    store: FeatureStore,
    models: Models,
    ledger: Ledger,
    *,
    device: str,
    layers: Layers,
    version: str | None,
    say: Callable[[str], None],
) -> Iterator[LiveModel]:
    """A live model for the length of a block.

    Args:
        store, models: where features and versions are.
        ledger: knows the latest payments.
        device, layers: of deciders.
        version: the one to stay with; None follows the current one.
        say: told of what changes.

    Raises:
        ModelRefused: the first version cannot be used.
    """
    ended = threading.Event()
    live = LiveModel(
        models,
        lambda bundle: decider_of(store, bundle, device, layers),
        warm=lambda decider: warm(decider, ledger, ended.wait),
        version=version,
        say=say,
    )
    if version is None:
        live.start()
    try:
        yield live
    finally:
        ended.set()
        live.close()
