"""Reads `quality.py` of a feature repo.

It is a Python file that stands beside the definitions, and is run as those are by `feast apply`:
whoever may change one may change the other. It is found by its path alone, under a name of its own,
so that a module `quality` of somebody else's is neither taken for it nor hidden by it.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Final

from hotplate.quality.declared import ViewQuality
from hotplate.quality.errors import QualityError

__all__ = ["FILE", "declarations"]

FILE: Final = "quality.py"


def declarations(folder: Path) -> dict[str, ViewQuality]:
    """What a repo declares, by the name of the view or table; empty without a `quality.py`.

    Raises:
        QualityError: the file cannot be run, or speaks of one view twice.
    """
    path = folder / FILE
    if not path.is_file():
        return {}
    found: dict[str, ViewQuality] = {}
    for name, value in vars(_run(path)).items():
        if not isinstance(value, ViewQuality) or name.startswith("_"):
            continue
        other = found.get(value.name)
        if other is not None and other is not value:
            raise QualityError(
                where=str(path),
                problem=f"speaks of {value.name!r} twice",
                fix="Say all of it in one place.",
            )
        found[value.name] = value
    return found


def _run(path: Path) -> ModuleType:
    name = f"_hotplate_quality_{abs(hash(str(path)))}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where classes that the file defines look for their names
    try:
        if b"great_expectations" in path.read_bytes():
            import hotplate.quality.gx  # noqa: F401 - with the care that its import needs
        with _beside(path.parent):
            spec.loader.exec_module(module)
    except QualityError as error:
        raise QualityError(where=_at(path), problem=str(error), fix="") from None
    except (Exception, SystemExit) as error:
        raise QualityError(
            where=_at(path), problem=f"{type(error).__name__}: {error}", fix=""
        ) from error
    return module


@contextmanager
def _beside(folder: Path) -> Iterator[None]:
    """Lets the file import its neighbours, as `feast apply` does for `features.py`."""
    place = str(folder.resolve())
    sys.path.insert(0, place)
    try:
        yield
    finally:
        sys.path.remove(place)


def _at(path: Path) -> str:
    """The file, and the line of it at which it failed."""
    error = sys.exc_info()[1]
    if isinstance(error, SyntaxError):
        return f"{path}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f"{path}, line {lines[-1]}" if lines else str(path)
