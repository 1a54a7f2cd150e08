"""Promise 2 where the shared tier could not be told: nothing is read before it has been."""

from __future__ import annotations

import os

import pytest

from hotplate.tiers.debts import Debts


def test_what_is_being_paid_is_owed_still() -> None:
    """Another thread may read meanwhile; what is owed meanwhile is paid in the next round."""
    debts = Debts(b"*")
    debts.add([b"a"], [b"f"])
    seen = []

    def carry_out(keys: list[bytes], fields: list[bytes]) -> None:
        seen.append((keys, fields, len(debts)))
        if len(seen) == 1:
            debts.add([b"a"], [])

    debts.pay(carry_out)
    assert seen == [([b"a"], [b"f"], 2), ([b"a"], [], 1)]
    assert not debts


def test_what_fails_is_owed_still() -> None:
    """Whatever it failed with."""
    debts = Debts(b"*")
    debts.add([b"a", b"b"], [b"f"])

    def fail(keys: list[bytes], fields: list[bytes]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        debts.pay(fail)
    assert len(debts) == 3


def test_too_many_keys_become_all_of_them() -> None:
    """The memory for it is bounded."""
    debts = Debts(b"*")
    debts.add([b"%d" % number for number in range(60_000)], [])
    assert len(debts) == 1
    paid: list[bytes] = []
    debts.pay(lambda keys, fields: paid.extend(fields))
    assert paid == [b"*"]


def test_a_child_that_is_forked_meanwhile_owes_it_too() -> None:
    """What its parent was just paying, the parent may not get to."""
    debts = Debts(b"*")
    debts.add([b"a"], [])
    codes = []

    def carry_out(keys: list[bytes], fields: list[bytes]) -> None:
        pid = os.fork()
        if pid == 0:  # pragma: no cover - the child
            paid: list[bytes] = []
            try:
                debts.pay(lambda keys, fields: paid.extend(keys))
            finally:
                os._exit(0 if paid == [b"a"] else 1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    debts.pay(carry_out)
    assert codes == [0]
