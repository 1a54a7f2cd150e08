"""Promise 10 in the names of the shared tier: nothing can be taken for something else."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hotplate.keys import EntityShape
from hotplate.tiers.entries import EntryName, entity_of, prefix_of, project_prefix, read_name

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int64_val": st.integers(-(2**63), 2**63 - 1),
    "int32_val": st.integers(-(2**31), 2**31 - 1),
    "unix_timestamp_val": st.integers(-(2**63), 2**63 - 1),
    "string_val": st.text("ab:%é🥐\0 1"),
    "bytes_val": st.binary(),
    "": st.none(),
}
PARTS = st.text("abv:%*?[]\\_é1", min_size=1, max_size=6)
SHAPES = st.lists(
    st.tuples(PARTS, st.sampled_from(sorted(VALUES))),
    min_size=1,
    max_size=3,
    unique_by=lambda pair: pair[0],
).map(lambda pairs: EntityShape(*(tuple(part) for part in zip(*sorted(pairs), strict=True))))
NAMES = SHAPES.flatmap(
    lambda shape: st.builds(
        EntryName, PARTS, st.just(shape), st.tuples(*(VALUES[kind] for kind in shape.types))
    )
)


def key_of(project: str, name: EntryName) -> bytes:
    """The key under which the tier keeps an entity."""
    return prefix_of(project, name.version, name.shape) + entity_of(name.values)


@given(PARTS, NAMES)
def test_a_key_says_what_it_was_made_of(project: str, name: EntryName) -> None:
    """Every key type, composite keys, an entity that is null, names full of borders."""
    assert read_name(key_of(project, name), project_prefix(project)) == name


@given(PARTS, NAMES, PARTS, NAMES)
def test_two_entities_never_share_a_key(
    project: str, name: EntryName, other: str, another: EntryName
) -> None:
    """And one project's prefix never begins another's key."""
    if (project, name) != (other, another):
        assert key_of(project, name) != key_of(other, another)
    if project != other:
        assert read_name(key_of(project, name), project_prefix(other)) is None


@given(PARTS, NAMES)
def test_a_prefix_is_no_pattern(project: str, name: EntryName) -> None:
    """SCAN takes it literally: nothing in it stands for anything else."""
    prefix = prefix_of(project, name.version, name.shape)
    assert not set(prefix) & set(b"*?[]\\^")
    assert key_of(project, name).startswith(prefix)


@given(st.binary(max_size=30))
def test_garbage_under_the_prefix_is_no_entry(rest: bytes) -> None:
    """Whatever stands there, it is read or refused."""
    found = read_name(project_prefix("a") + rest, project_prefix("a"))
    assert found is None or key_of("a", found).startswith(project_prefix("a"))
