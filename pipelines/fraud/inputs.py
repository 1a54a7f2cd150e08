"""What a payment itself brings to the model, the same in training and in serving."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["REQUEST_INPUTS", "request_inputs"]

REQUEST_INPUTS: Final = ("amount", "is_weekend", "is_night")
"""The model's first inputs, in this order; the features of the service follow."""

_NIGHT_ENDS_HOUR: Final = 6
_MS_PER_HOUR: Final = 3_600_000


def request_inputs(amount: npt.NDArray[Any], at_ms: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """The inputs of payments, float32 (rows, 3).

    Args:
        amount: (rows,), currency units.
        at_ms: (rows,) int64, when they were made, ms since 1970, UTC. The night ends with the hour
            that begins at six; Saturday and Sunday are the weekend.
    """
    hours = at_ms // _MS_PER_HOUR
    made = np.empty((len(amount), len(REQUEST_INPUTS)), np.float32)
    made[:, 0] = amount
    made[:, 1] = (hours // 24 + 3) % 7 >= 5  # 1970 began on a Thursday, weeks begin on a Monday
    made[:, 2] = hours % 24 <= _NIGHT_ENDS_HOUR
    return made
