"""What can be wrong with a declaration of windows, and with stored state."""

from __future__ import annotations

from hotplate.errors import HotplateError

__all__ = ["ClockBehindError", "WindowSpecError", "WindowStateError"]


class WindowSpecError(HotplateError):
    """A window, an aggregate or an event log is declared in a way that cannot work.

    Attributes:
        where: the column or the output that is wrong.
        problem: what is wrong with it.
        fix: what to write instead.
    """

    def __init__(self, *, where: str, problem: str, fix: str) -> None:
        self.where = where
        self.problem = problem
        self.fix = fix
        super().__init__(f"windows: {where}: {problem}. {fix}")


class WindowStateError(HotplateError):
    """Stored state is truncated, damaged, foreign, of another layout or version, or not there.

    Attributes:
        position: which of the logs of a read, counted from 0; None where only one was given.
    """

    def __init__(
        self,
        problem: str,
        *,
        position: int | None = None,
        fix: str = "Seed the event view again: `hotplate windows seed`.",
    ) -> None:
        self.problem = problem
        self.position = position
        where = "" if position is None else f" of entity {position}"
        super().__init__(f"window state{where}: {problem}. {fix}")


class ClockBehindError(WindowStateError):
    """A read asks for a moment that lies before what compaction has folded away.

    Either the reader's clock is behind the compactor's by more than the log's slack, or the caller
    asks the online state for a past moment, which only the offline computation can answer.
    """

    def __init__(self, t_ms: int, horizon_ms: int, *, position: int | None = None) -> None:
        self.t_ms = t_ms
        self.horizon_ms = horizon_ms
        super().__init__("is newer than the moment asked for", position=position)
        where = "" if position is None else f" of entity {position}"
        self.args = (
            f"window state{where}: t={t_ms} lies before {horizon_ms}, up to which events have been "
            "folded together. Synchronise the clocks, or raise the log's slack; past moments are "
            "answered offline.",
        )
