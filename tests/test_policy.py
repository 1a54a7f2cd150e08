"""Policies: what may be said, what is refused, who wins."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotplate import CachePolicy, PolicyError, TTLMap
from hotplate.durations import NO_LIMIT_NS, format_duration, parse_duration
from hotplate.policy import PolicyLayers, read_tags
from hotplate.sizes import format_bytes, parse_bytes, parse_share


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("5m", 300), ("1h30m", 5400), ("250ms", 0.25), ("7d", 604_800), ("0", 0)]
    + [("0s", 0), (0, 0), ("1.5s", 1.5), (" 5M ", 300), (timedelta(minutes=1), 60)]
    + [("1.9ms", 0.001), (timedelta(microseconds=1900), 0.001), ("1.001s", 1.001)],
)
def test_durations_as_people_write_them(text: object, seconds: float) -> None:
    """Text with units, zero without one, and timedeltas; rounded down to milliseconds."""
    assert parse_duration(text) == round(seconds * 1e9)


@pytest.mark.parametrize(
    "wrong",
    ["", "30", 30, 1.5, "-5s", -1, None, True, "5 parsecs", "m5", "30s5m", "5m5m", "1e3s", "nan"]
    + [[], timedelta(seconds=-1), "infinity", "99999999d", float("nan"), float("inf")]
    + ["0.1ms", "0.0000000001ms", timedelta(microseconds=999)],
)
def test_durations_that_are_refused(wrong: object) -> None:
    """No unit, a sign, an empty value, a unit twice or out of order: each with what to write."""
    with pytest.raises(ValueError, match="write"):
        parse_duration(wrong)


@given(st.integers(0, 10**9))
def test_durations_are_written_as_they_are_read(milliseconds: int) -> None:
    """Reading what was written gives the same duration."""
    assert parse_duration(format_duration(milliseconds * 10**6)) == milliseconds * 10**6


def test_none_is_no_limit() -> None:
    """`none` reads and writes as no limit."""
    assert parse_duration("none") == NO_LIMIT_NS
    assert format_duration(NO_LIMIT_NS) == "none"


@pytest.mark.parametrize(
    ("settings", "key", "says"),
    [
        ({"ttl": "-5s"}, "ttl", "negative"),
        ({"ttl": 30}, "ttl", "no unit"),
        ({"ttl": None}, "ttl", "empty"),
        ({"tll": "30s"}, "tll", "Did you mean 'ttl'"),
        ({"colour": "red"}, "colour", "Known settings: ttl, negative_ttl"),
        ({"jitter": 1}, "jitter", "out of range"),
        ({"jitter": "-10%"}, "jitter", "out of range"),
        ({"jitter": "much"}, "jitter", "not a share"),
        ({"cache": "sometimes"}, "cache", "Write 'cached' or 'never'"),
        ({"on_source_error": "ignore"}, "on_source_error", "last_good 10m"),
        ({"on_source_error": "last_good 10"}, "on_source_error", "no unit"),
        ({"ttl": "30s", "negative_ttl": "1m"}, "negative_ttl", "longer than the ttl of 30s"),
        ({"ttl": "30s", "stale_while_revalidate": "30s"}, "stale_while_revalidate", "not shorter"),
        ({"ttl": "none", "stale_while_revalidate": "1s"}, "stale_while_revalidate", "no meaning"),
        ({"ttl": "30s", "on_source_error": "last_good 10s"}, "on_source_error", "shorter than"),
    ],
)
def test_refusals_name_group_key_and_fix(settings: dict[str, Any], key: str, says: str) -> None:
    """A wrong setting is refused in a map as in a policy, with the group, the key and the fix."""
    with pytest.raises(PolicyError, match="group 'users'") as caught:
        TTLMap({"users": settings})
    assert caught.value.group == "users"
    assert caught.value.key == key
    assert says in str(caught.value)
    if None not in settings.values():
        with pytest.raises(PolicyError):
            CachePolicy(**settings)


def test_tags_round_trip() -> None:
    """What a policy writes into tags is what is read from them."""
    policy = CachePolicy(
        ttl="1h30m",
        negative_ttl="2s",
        jitter="12.5%",
        stale_while_revalidate="5m",
        on_source_error="last_good 2h",
        cache="cached",
    )
    read = read_tags("view", policy.tags("users") | {"owner": "risk"})
    assert (read.group, read.policy) == ("users", policy)
    assert read_tags("view", None).group == "view"


@pytest.mark.parametrize("tags", [{"hotplate.tll": "3s"}, {"hotplate.ttl": "x"}])
def test_unknown_tags_are_refused(tags: dict[str, str]) -> None:
    """A typo in a tag is not a setting that nobody reads."""
    with pytest.raises(PolicyError, match="group 'view'"):
        read_tags("view", tags)


@pytest.mark.parametrize("group", ["", "default", "user_*"])
def test_a_group_needs_a_plain_name(group: str) -> None:
    """A group cannot be called as the default or a wildcard is."""
    with pytest.raises(PolicyError, match="cannot name a group"):
        read_tags("view", {"hotplate.group": group})


def resolve(layers: PolicyLayers, group: str, **tags: str) -> dict[str, str]:
    tagged = [read_tags(group, {f"hotplate.{key}": value for key, value in tags.items()})]
    return layers.resolve(group, tagged).shown()


def test_what_speaks_of_fewer_groups_wins_and_then_the_profile() -> None:
    """default < tags < wildcard < name, in each the profile last; each setting for itself."""
    ttl_map = TTLMap({"default": "1s", "user_*": {"ttl": "3s", "jitter": "5%"}, "user_x": "4s"})
    profile = TTLMap({"default": "5s", "user_*": "6s", "user_y": "7s"})
    plain, layers = PolicyLayers(ttl_map), PolicyLayers(ttl_map, profile)
    assert resolve(PolicyLayers(TTLMap()), "other")["ttl"] == "0s"
    for group, tags, ttl, ttl_with_profile in (
        ("other", {}, "1s", "5s"),
        ("other", {"ttl": "2s"}, "2s", "2s"),
        ("user_z", {"ttl": "2s"}, "3s", "6s"),
        ("user_x", {"ttl": "2s"}, "4s", "4s"),
        ("user_y", {"ttl": "2s"}, "3s", "7s"),
    ):
        assert resolve(plain, group, **tags)["ttl"] == ttl
        assert resolve(layers, group, **tags)["ttl"] == ttl_with_profile
    assert resolve(layers, "user_x")["jitter"] == "0.05"
    off = PolicyLayers(ttl_map, TTLMap({"*": {"cache": "never"}}))
    assert resolve(off, "user_x")["cache"] == "never"


def test_origins_say_where_each_setting_comes_from() -> None:
    """Whoever asks why a value is 4 s old finds the line that says so."""
    layers = PolicyLayers(TTLMap({"default": {"jitter": 0}, "u*": {"ttl": "4s"}}))
    resolved = layers.resolve("users", [read_tags("users", {"hotplate.negative_ttl": "1s"})])
    assert resolved.origins == {
        "jitter": "ttl_map['default']",
        "ttl": "ttl_map['u*']",
        "negative_ttl": "tags of feature view 'users'",
    }


def test_two_wildcards_that_disagree_are_refused() -> None:
    """Which of two wildcards is meant is not for the software to guess."""
    layers = PolicyLayers(TTLMap({"user_*": "3s", "*_hot": "4s"}))
    assert layers.resolve("user_cold").ttl_ns == 3 * 10**9
    with pytest.raises(PolicyError, match=r"ambiguous: ttl_map\['user_\*'\] says 3s"):
        layers.resolve("user_hot")


def test_views_of_one_group_that_disagree_are_refused() -> None:
    """One group has one ttl."""
    tagged = [
        read_tags("a", CachePolicy(ttl="1s").tags("g")),
        read_tags("b", CachePolicy(ttl="2s").tags("g")),
    ]
    with pytest.raises(PolicyError, match="feature view 'a' says 1s, feature view 'b'"):
        PolicyLayers(TTLMap()).resolve("g", tagged)


def test_a_lower_ttl_in_a_later_layer_takes_what_depends_on_it_along() -> None:
    """Lowering a ttl in a deployment does not ask for every other setting to be said again."""
    layers = PolicyLayers(TTLMap({"users": "2s"}))
    tags = CachePolicy(ttl="1h", negative_ttl="1m", stale_while_revalidate="10m").tags()
    resolved = layers.resolve("users", [read_tags("users", tags)])
    shown = resolved.shown()
    assert (shown["ttl"], shown["negative_ttl"]) == ("2s", "2s")
    assert shown["stale_while_revalidate"] == "1s"
    cut = "tags of feature view 'users', cut to fit the ttl (ttl_map['users'])"
    assert resolved.origins["negative_ttl"] == cut
    assert resolved.origins["stale_while_revalidate"] == cut
    endless = PolicyLayers(TTLMap({"users": "none"})).resolve("users", [read_tags("users", tags)])
    assert endless.shown()["stale_while_revalidate"] == "off"
    assert "off for want of a ttl that ends" in endless.origins["stale_while_revalidate"]


def test_a_map_writes_tags_for_its_groups() -> None:
    """The feature repo writes its map into tags; an unknown group is refused."""
    freshness = TTLMap({"default": "1m", "users": {"ttl": "30s", "jitter": 0}})
    assert freshness.tags("users") == {
        "hotplate.group": "users",
        "hotplate.ttl": "30s",
        "hotplate.jitter": "0",
    }
    assert freshness.tags("other")["hotplate.ttl"] == "1m"
    with pytest.raises(PolicyError, match="Did you mean 'users'"):
        TTLMap({"users": "30s"}).tags("user")


def test_a_map_writes_tags_that_can_be_read_again() -> None:
    """Its default is cut to fit a group of a shorter ttl, and left out where nothing is kept."""
    default = {"ttl": "1h", "negative_ttl": "1m", "stale_while_revalidate": "10m"}
    freshness = TTLMap(
        {
            "default": {**default, "coherence": "event", "on_source_error": "last_good 2h"},
            "quick": "2s",
            "blocked": {"cache": "never"},
            "none_kept": "0s",
        }
    )
    for group, swr in (("quick", "1s"), ("blocked", None), ("none_kept", None)):
        tags = freshness.tags(group)
        assert tags.get("hotplate.stale_while_revalidate") == swr
        assert read_tags(group, tags).policy.settings()


def test_names_that_are_no_group_are_refused() -> None:
    """A typo in a deployment's map is not a policy that nobody lives by."""
    group_of = {"user": "user", "user_stats": "user", "merchant": "merchant"}
    layers = PolicyLayers(TTLMap({"usr": "3s", "x*": "4s", "default": "1s"}))
    with pytest.raises(PolicyError, match="Did you mean 'user'"):
        layers.check_names(group_of)
    layers = PolicyLayers(TTLMap({"user_stats": "3s"}))
    with pytest.raises(PolicyError, match="is a feature view of group 'user': name the group"):
        layers.check_names(group_of)
    assert TTLMap({"x*": "4s", "user*": "1s"}).idle_wildcards(["user", "merchant"]) == ["x*"]


def test_a_stray_name_may_have_been_meant_for_any_group_not_named() -> None:
    """Until it is corrected, these are no staler than it allows, nor than their own policy."""
    ttl_map = TTLMap(
        {
            "default": {"ttl": "1m", "on_source_error": "last_good 10m"},
            "merchant": "90s",
            "usr": {"ttl": "3s", "on_source_error": "raise"},
        }
    )
    layers = PolicyLayers(ttl_map, TTLMap({"cuont": {"ttl": "2m", "coherence": "event"}}))
    strays = layers.strays({"user", "merchant", "count"})
    assert [stray.name for stray in strays] == ["usr", "cuont"]
    user = layers.resolve("user", (), strays)
    assert (user.shown()["ttl"], user.last_good_ns, user.is_event) == ("3s", None, True)
    merchant = layers.resolve("merchant", (), strays)
    assert merchant.shown()["ttl"] == "1m30s"
    assert merchant.is_event
    never = TTLMap({"default": "1m", "usr": {"cache": "never"}})
    layers = PolicyLayers(never)
    assert not layers.resolve("user", (), layers.strays({"user"})).is_cached


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["users"], "ttl_map: is a list, not a mapping"),
        ({"": "30s"}, "'': is no name of a group"),
        ({5: "30s"}, "5: is no name of a group"),
        ({True: "30s"}, "True: is no name of a group"),
        ({"users": "never"}, r"group 'users' \(ttl_map\): ttl: 'never' .* write {cache: never}"),
        ({"default": "5 apples"}, r"policy of the default \(ttl_map\): ttl: '5 apples'"),
        ({"user_*": "5 apples"}, r"policy of the groups 'user_\*' \(ttl_map\): ttl: '5 apples'"),
    ],
)
def test_maps_that_are_refused(wrong: Any, says: str) -> None:
    """What is no map, no name or no policy, with where it stands."""
    with pytest.raises(PolicyError, match=says):
        TTLMap(wrong)


def test_a_policy_needs_names_of_settings() -> None:
    """A policy that has no group yet does not pretend to have one."""
    with pytest.raises(PolicyError, match=r"^cache policy: ttl: '30s' is given without the name"):
        CachePolicy("30s")
    with pytest.raises(PolicyError, match=r"^cache policy: ttl: 'soon' is not a duration"):
        CachePolicy(ttl="soon")


@pytest.mark.parametrize("off", [{"cache": "never"}, {"coherence": "never"}, {"ttl": "0s"}])
@pytest.mark.parametrize(
    "promise",
    [{"on_source_error": "last_good 1h"}, {"stale_while_revalidate": "1s"}],
)
def test_a_promise_that_nothing_could_keep_is_refused(
    off: dict[str, str], promise: dict[str, str]
) -> None:
    """Where nothing is kept there is no last value to serve; a harmless ttl may stand there."""
    with pytest.raises(PolicyError, match="has no effect beside"):
        CachePolicy(**off, **promise)
    assert CachePolicy(**off, jitter=0).settings()
    assert CachePolicy(cache="never", ttl="5m").settings()


@pytest.mark.parametrize("off", [False, "off", "0s", 0])
def test_revalidation_can_be_off(off: Any) -> None:
    """YAML reads `off` as false; it is shown as people write it."""
    policy = CachePolicy(ttl="1m", stale_while_revalidate=off)
    assert policy.tags()["hotplate.stale_while_revalidate"] == "off"
    assert read_tags("v", policy.tags()).policy == policy
    shown = PolicyLayers(TTLMap({"v": policy})).resolve("v").shown()
    assert shown["stale_while_revalidate"] == "off"


@pytest.mark.parametrize(
    ("text", "size"), [("512MB", 512_000_000), ("2GiB", 2 << 30), ("10kb", 10_000), (5, 5)]
)
def test_sizes(text: object, size: int) -> None:
    """Sizes with decimal and binary units."""
    assert parse_bytes(text) == size


@pytest.mark.parametrize("wrong", ["", "5", "5XB", -1, 0, None, True, 1.5])
def test_sizes_that_are_refused(wrong: object) -> None:
    """No unit, no room, no number."""
    with pytest.raises(ValueError, match="write"):
        parse_bytes(wrong)


@pytest.mark.parametrize("wrong", ["", "much", None, True, [], float("nan"), "nan", "inf%"])
def test_shares_that_are_refused(wrong: object) -> None:
    """No number, or none that is finite."""
    assert parse_share("10%") == pytest.approx(parse_share(0.1))
    with pytest.raises(ValueError, match="is not a share"):
        parse_share(wrong)


def test_sizes_are_shown_short() -> None:
    """A size as a person reads it."""
    assert [format_bytes(n) for n in (12, 1_234, 1_234_567, 10**10)] == [
        "12B",
        "1.2KB",
        "1.2MB",
        "10.0GB",
    ]
