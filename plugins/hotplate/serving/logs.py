"""What a deployment writes down of reads and writes, from its settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from hotplate.clock import Clock
from hotplate.warming.changes import ChangeLog
from hotplate.warming.families import Counted, FamilyLog
from hotplate.warming.marks import WriteMarks, boot_id
from hotplate.warming.traffic import TrafficLog, TrafficSettings

if TYPE_CHECKING:
    from hotplate.settings import PreloadConfig, TrafficConfig

__all__ = ["traffic_logs", "write_marks"]


def traffic_logs(
    settings: TrafficConfig | None,
    project: str,
    clock: Clock,
    families: Callable[[], Iterable[tuple[str, str, Counted]]],
) -> tuple[TrafficLog | None, ChangeLog | None, FamilyLog | None]:
    """The logs of what is read, of what changes, and of the families of outputs.

    None for one that the deployment lacks.
    """
    if settings is None:
        return None, None, None
    said = TrafficSettings(
        Path(settings.folder),
        settings.sample,
        settings.ids == "plain",
        settings.max_bytes,
        settings.every,
        settings.changes,
        settings.lossless,
    )
    changes = ChangeLog(said, project, clock) if said.has_changes else None
    of_families = FamilyLog(said, clock, families)
    return TrafficLog(said, project, clock, of_families.note), changes, of_families


def write_marks(settings: PreloadConfig | None, project: str, clock: Clock) -> WriteMarks:
    """Where it is noted which views were written, as rows that outlive their process need it."""
    is_kept = settings is not None and settings.rows and bool(boot_id())
    return WriteMarks(Path(settings.folder) / project if settings and is_kept else None, clock)
