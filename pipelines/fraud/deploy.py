"""Another version of the model goes live while payments are scored, and back again.

A version is tried here, with the store that serves it, before the pointer moves. Processes that
score see the pointer within a second (`pipelines.fraud.live`) and try it once more for themselves.
"""

from __future__ import annotations

from feast import FeatureStore

from pipelines.fraud.bundle import ModelRefused
from pipelines.fraud.decide import Layers
from pipelines.fraud.live import decider_of
from pipelines.fraud.work import Work

__all__ = ["deploy", "roll_back"]


def deploy(work: Work, store: FeatureStore, version: str, device: str = "auto") -> None:
    """Make a version current.

    Raises:
        ModelRefused: it cannot be used with this store; what was current stays so.
        ValueError: there is no such device.
    """
    _try(work, store, version, device)
    work.models.make_current(version)


def roll_back(work: Work, store: FeatureStore, device: str = "auto") -> str:
    """Make the version current that was so before; a second time, the one before that.

    Returns:
        Which one that is.

    Raises:
        ModelRefused: there is none, or it cannot be used any more.
    """
    before = work.models.before()
    if not before:
        raise ModelRefused(
            f"{work.models.folder} remembers no version before the current one: name one with "
            "`python -m pipelines.fraud deploy VERSION`"
        )
    _try(work, store, before[-1], device)
    work.models.roll_back(before[-1])
    return before[-1]


def _try(work: Work, store: FeatureStore, version: str, device: str) -> None:
    decider_of(store, work.models.load(version), device, Layers())
