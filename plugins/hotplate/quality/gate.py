"""The gate: looks at data before Feast writes it, and refuses it or says so.

Before `materialize` it reads the same rows of the same source, all versions of them, and judges
them before any of the view is written. Of pushes it judges a sample: on the way where bad ones are
refused, on the side where they are only counted and logged, at most once a minute.

Nothing of this is imported or started before the first write of a deployment that asks for it.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pandas as pd

from hotplate.clock import SYSTEM_CLOCK, Clock
from hotplate.errors import HotplateError
from hotplate.quality.aside import Aside
from hotplate.quality.check import Asking, check
from hotplate.quality.declared import ViewQuality
from hotplate.quality.derive import BATCH, PART
from hotplate.quality.errors import QualityError, QualityFailed
from hotplate.quality.frames import Frames, Span, of_frame
from hotplate.quality.module import FILE as MODULE
from hotplate.quality.module import declarations
from hotplate.quality.outcome import Checked
from hotplate.quality.reference import Reference
from hotplate.quality.sources import place_of, rows_of
from hotplate.quality.subject import Subject, of_view
from hotplate.seldom import Seldom
from hotplate.stats import QualityCounters

__all__ = ["Gate"]

_SAID: Final = 5
_ROWS: Final = 10_000
_log = logging.getLogger("hotplate.quality")


class Gate:
    """The quality gate of one deployment.

    Args:
        config: Feast's.
        settings: `online_store.quality`, see `hotplate.settings.QualityConfig`.
        counters: what it has seen.
        clock: where the time comes from.
    """

    def __init__(
        self,
        config: Any,
        settings: Any,
        counters: QualityCounters,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._clock = clock
        self._config = config
        self._settings = settings
        self._counters = counters
        self._folder = Path(config.repo_path or ".")
        self._rules: tuple[Any, Reference, Mapping[str, ViewQuality]] | None = None
        self._aside = Aside(self._look_aside)
        self._seldom = Seldom()

    # -- materialize ----------------------------------------------------------------------------

    def before_materialize(
        self, view: Any, offline_store: Any, start: datetime, end: datetime
    ) -> None:
        """Judge the rows that are about to be written.

        Raises:
            QualityFailed: they are not as expected, and such are refused.
            QualityError: they cannot be judged, and such are refused.
        """
        mode = self._settings.materialize
        subject = None if mode == "off" else of_view(view)
        if subject is None:
            return
        now = self._now()
        span = Span(subject.moment, start, end)
        try:
            frames = rows_of(subject, self._config, offline_store, span)
            place = place_of(subject, self._config)
            asking = Asking(subject, now, place, scope=PART, as_of=min(now, end))
            checked = self._checked(asking, frames)
        except Exception as error:
            self._counters.errors += 1
            self._counters.last = str(error)
            if mode == "block":
                raise
            _log.warning("materialize of %s goes on, and was not judged: %s", view.name, error)
            return
        if checked.is_good:
            return
        text = _told(checked)
        if mode == "block":
            self._counters.blocked += 1
            raise QualityFailed(
                view.name,
                f"materialize of {view.name!r} is refused, nothing of it was written: {text}. "
                f"Mend {asking.where}; `hotplate quality run {view.name}` says more. "
                "To go on all the same, set online_store.quality.materialize: warn.",
            )
        _log.warning("materialize of %s goes on with data that is not as expected: %s",
                     view.name, text)  # fmt: skip

    # -- pushes ---------------------------------------------------------------------------------

    def refuses_pushes(self) -> bool:
        """Whether a push waits until it is judged."""
        return bool(self._settings.pushes == "block")

    def before_push(self, view: Any, frame: pd.DataFrame) -> None:
        """Judge a sample of what is pushed: now where bad ones are refused, else on the side.

        Raises:
            QualityFailed: it is not as expected, and such is refused.
            QualityError: it cannot be judged, and such is refused.
        """
        settings = self._settings
        if settings.pushes == "off" or random.random() >= settings.share:
            return
        subject = of_view(view)
        if subject is None:
            return
        if settings.pushes != "block":
            rows = frame if len(frame) <= _ROWS else frame.sample(_ROWS)
            if not self._aside.put((subject, rows.copy())):
                self._counters.dropped += 1
            return
        try:
            checked = self._checked_push(subject, frame)
        except HotplateError as error:
            self._counters.errors += 1
            self._counters.last = str(error)
            raise
        if not checked.is_good:
            self._counters.blocked += 1
            raise QualityFailed(
                view.name,
                f"push to {view.name!r} is refused, nothing was written: {_told(checked)}",
            )

    def close(self) -> None:
        """Stop looking on the side, after what waits."""
        self._aside.close()

    def _look_aside(self, one: tuple[Subject, pd.DataFrame]) -> None:
        subject, frame = one
        try:
            checked = self._checked_push(subject, frame)
        except Exception as error:  # noqa: BLE001 - nobody waits for it: it is counted, and said
            self._counters.errors += 1
            self._counters.last = f"{type(error).__name__}: {error}"
            if self._seldom.is_time():
                _log.warning("pushes to %s could not be judged: %s", subject.name, error)
            return
        if not checked.is_good and self._seldom.is_time():
            _log.warning(
                "a push to %s is not as expected: %s. %d of %d that were looked at so far",
                subject.name,
                _told(checked),
                self._counters.failed,
                self._counters.checked,
            )

    def _checked_push(self, subject: Subject, frame: pd.DataFrame) -> Checked:
        asking = Asking(subject, self._now(), "a push", scope=BATCH)
        return self._checked(asking, of_frame(frame, subject.renamed))

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.wall_ns() / 1e9, UTC)

    # -- both -----------------------------------------------------------------------------------

    def _checked(self, asking: Asking, frames: Frames) -> Checked:
        reference, declared = self._known()
        name = asking.subject.name
        asking = replace(asking, profile=reference.views.get(name), said=declared.get(name))
        from hotplate.quality.gx import Judge

        checked = check(asking, frames, Judge())
        self._counters.checked += 1
        if not checked.is_good:
            self._counters.failed += 1
            self._counters.last = _told(checked)
        return checked

    def _known(self) -> tuple[Reference, Mapping[str, ViewQuality]]:
        """The reference and `quality.py`, read again when either has changed."""
        path = self._folder / self._settings.reference
        state = tuple(_changed_ns(one) for one in (path, self._folder / MODULE))
        if self._rules is None or self._rules[0] != state:
            if state[0] is None:
                raise QualityError(
                    where=f"online_store.quality.reference {path}",
                    problem="no such file",
                    fix="Make it with `hotplate quality profile`.",
                )
            self._rules = state, Reference.read(path), declarations(self._folder)
        return self._rules[1:]


def _changed_ns(path: Path) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None


def _told(checked: Checked) -> str:
    lines = [one.line() for one in checked.bad[:_SAID]]
    more = len(checked.bad) - len(lines)
    return "; ".join(lines) + (f"; and {more} more" if more else "")
