"""Functions that a deployment names by their import path."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

__all__ = ["imported"]


def imported(path: str) -> Callable[..., Any]:
    """The function that `package.module:function` names.

    Raises:
        ImportError: it cannot be imported.
        TypeError: what is there cannot be called.
    """
    module, _, name = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ImportError(f"{path!r} cannot be imported ({error})") from error
    if not callable(found):
        raise TypeError(f"{path!r} is no function")
    function: Callable[..., Any] = found
    return function
