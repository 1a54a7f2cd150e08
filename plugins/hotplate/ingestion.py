"""Frames that Feast's own ingestion would cut short.

Feast 0.67 converts a pushed frame to an Arrow table and reads the table's first batch only. A
frame backed by Arrow columns of several chunks (the usual result of `read_parquet` with the
pyarrow backend, or of a concatenation) therefore loses all rows but those of the first chunk, and
says nothing. `defragment` joins the chunks before Feast sees them.
"""

from __future__ import annotations

import pandas as pd
import pyarrow as pa

__all__ = ["defragment"]


def defragment(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with the chunks of its Arrow-backed columns joined; values are unchanged.

    A frame without such columns is returned as it is.

    Raises:
        TypeError: it is not a frame.
    """
    if not isinstance(frame, pd.DataFrame):
        raise TypeError(f"expected a pandas DataFrame of rows, got a {type(frame).__name__}")
    joined = {}
    for position, name in enumerate(frame.columns):
        array = frame.iloc[:, position].array
        if not hasattr(array, "__arrow_array__"):
            continue
        chunks = array.__arrow_array__()
        if isinstance(chunks, pa.ChunkedArray) and chunks.num_chunks > 1:
            whole = pa.chunked_array([chunks.combine_chunks()], type=chunks.type)
            joined[name] = pd.Series(type(array)(whole), index=frame.index, dtype=array.dtype)
    return frame.assign(**joined) if joined else frame
