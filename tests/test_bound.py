"""Deadlines of many rows at once are those of each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hotplate.codec import ABSENT_ROW, HEADER_BYTES, stamp_of
from hotplate.core.request import Bound
from hotplate.durations import NO_LIMIT_NS
from hotplate.resolved import ResolvedPolicy

ttls = st.one_of(st.integers(0, 10**12), st.sampled_from([1 << 53, 1 << 54, NO_LIMIT_NS]))
rows_of = st.lists(
    st.tuples(st.integers(0, 2**62), st.integers(0, 255), st.sampled_from([0, 1, ABSENT_ROW, 5])),
    max_size=40,
)


@given(ttls, ttls, st.floats(0, 1), st.booleans(), rows_of)
def test_deadlines(
    ttl_ns: int, negative_ns: int, jitter: float, is_never: bool, heads: list[tuple[int, int, int]]
) -> None:
    bound = Bound(ResolvedPolicy("g", ttl_ns, negative_ns, jitter, 0, None, is_never))
    rows = [
        stamp.to_bytes(8, "big") + bytes([share, flags]) + bytes(HEADER_BYTES)
        for stamp, share, flags in heads
    ]
    expected = [
        stamp_of(row) + (bound.expiry_ns(row) if bound.policy.is_cached else 0) for row in rows
    ]
    assert bound.deadlines_ns(rows) == expected
