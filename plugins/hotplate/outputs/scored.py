"""What goes into a score beside the batch, and what comes out of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from hotplate.contracts import Lease, View
from hotplate.keys import Key
from hotplate.stats import OUTPUT_RESULTS
from hotplate.tiers.output_blobs import is_large, is_reference

__all__ = [
    "BYPASSED",
    "COMPARED",
    "CUT",
    "EXPIRED",
    "HIT",
    "MISS",
    "OFF",
    "ONE_COMPUTED",
    "ONE_HIT",
    "RULE",
    "WORDS",
    "Form",
    "Inputs",
    "InputsOf",
    "Mask",
    "Scored",
    "Values",
    "form_in",
    "short_output",
    "values_of",
]

Values: TypeAlias = npt.NDArray[Any]
Mask: TypeAlias = npt.NDArray[np.bool_]
Form: TypeAlias = tuple[np.dtype[Any], tuple[int, ...]]
"""Of the output for one row: its type and its shape."""

HIT, MISS, EXPIRED, CUT, COMPARED, RULE, OFF, BYPASSED = range(8)  # from RULE on nothing is kept
ONE_HIT: Final = (np.ones(1, np.bool_), np.zeros(1, np.int16))
ONE_COMPUTED: Final = np.zeros(1, np.bool_)
for _shared in (*ONE_HIT, ONE_COMPUTED):  # by all answers
    _shared.setflags(write=False)
WORDS: Final = OUTPUT_RESULTS


@dataclass(frozen=True)
class Inputs:
    """The rows of features that each row of a batch was made of.

    Attributes:
        keys: for each row the entities it hangs on.
        rows: of each of these entities, for each row, what the features were read from.
        deadlines_ns: for each row when the first of its features may no longer be served.
        are_there: for each row whether all of them are still what the cache holds.
        lease: under which they may be served; None where nothing else than age bounds them.
        views: for each entity of a row the view; None where one of them may not be shared.
    """

    keys: Sequence[tuple[Key, ...]]
    rows: Sequence[Sequence[bytes]]
    deadlines_ns: Sequence[int]
    are_there: Callable[[int], bool]
    lease: Lease | None = None
    views: Sequence[View] | None = None


class InputsOf(Protocol):
    """Where features come from: the cache of a store."""

    def __call__(self, features: Any, count: int) -> Inputs:
        """What the rows of an answer of the store were made of.

        Raises:
            OutputError: it is none, or of another number of rows.
        """


@dataclass(slots=True)
class Scored:
    """What a batch was answered.

    Attributes:
        values: the outputs, as the model shapes them: (rows,) or (rows, columns). The caller's own;
            but read-only, over the map of a file, where a batch of one row was answered from the
            blob tier.
        from_cache: bool (rows), whether each came from memory.
        why: for each row `"hit"`, or why it was computed: `"miss"`, `"expired"`, `"invalidated"`,
            `"compared"` (it was in memory, and a sample of these is checked), `"off"`,
            `"bypassed"` (its family does not pay), `"rule: NAME"`.
    """

    values: Values
    from_cache: Mask
    _codes: npt.NDArray[np.int16]
    _rules: tuple[str, ...]

    @property
    def why(self) -> list[str]:
        """See above; made when asked for."""
        return [_word(code, self._rules) for code in self._codes.tolist()]


def values_of(found: Sequence[bytes], form: Form | None) -> Values:
    """Outputs that lie one after the other, as an array of (rows, *shape)."""
    assert form is not None
    dtype, shape = form
    return np.frombuffer(b"".join(found), dtype).reshape(len(found), *shape)


def form_in(said: bytes, value: bytes) -> Form | None:
    """The form of an output of another process, or of what a reference in its place stands for;
    None where the output is not of it."""
    word, _, sizes = said.decode().partition(":")
    try:
        dtype = np.dtype(word)
    except TypeError:  # a width that numpy does not have
        return None
    shape = tuple(int(one) for one in sizes.split(",") if one)
    is_whole = len(value) == dtype.itemsize * math.prod(shape)
    is_elsewhere = is_large(dtype, shape) and is_reference(value)
    return (dtype, shape) if is_whole or is_elsewhere else None


def short_output(output: bytes) -> bytes:
    """An output, or what tells it from others: families remember thousands of them."""
    return output if len(output) <= 32 else blake2b(output, digest_size=16).digest()


def _word(code: int, rules: Sequence[str]) -> str:
    kind = code & 15
    return f"rule: {rules[(code >> 4) - 1]}" if kind == RULE else WORDS[kind]
