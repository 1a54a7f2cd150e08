"""Invalidations that the shared tier has not carried out yet.

While anything is owed nothing is read from it. What is being paid is owed still: its deletion may
be on the way while another thread reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final

from hotplate.forks import restart_in_children

__all__ = ["Debts"]

_KEYS_MAX: Final = 50_000


class Debts:
    """Keys to be deleted and fields of the generations to be renewed.

    Args:
        everything: the field that stands for all keys, where there are too many of them.
    """

    def __init__(self, everything: bytes) -> None:
        self._everything = everything
        self._keys: set[bytes] = set()
        self._fields: set[bytes] = set()
        self._start_clean()
        restart_in_children(self)

    def _start_clean(self) -> None:
        self._paying = 0
        self._paid: tuple[set[bytes], set[bytes]] = (set(), set())
        self._lock = threading.Lock()

    def restart_after_fork(self) -> None:
        """What the parent owes, the child has not deleted either."""
        keys, fields = self._paid
        self._keys, self._fields = self._keys | keys, self._fields | fields
        self._start_clean()

    def __len__(self) -> int:
        return len(self._keys) + len(self._fields) + self._paying

    def __bool__(self) -> bool:
        return bool(self._paying or self._keys or self._fields)

    def add(self, keys: Iterable[bytes], fields: Iterable[bytes]) -> None:
        """Note what the server has to be told before anything is read from it again."""
        with self._lock:
            self._keys.update(keys)
            self._fields.update(fields)
            if len(self._keys) > _KEYS_MAX:
                self._fields.add(self._everything)
                self._keys.clear()

    def pay(self, carry_out: Callable[[list[bytes], list[bytes]], None]) -> None:
        """Carry out what is owed; what fails is owed still.

        Raises:
            Exception: what `carry_out` raised.
        """
        while len(self):
            with self._lock:
                self._paid = keys, fields = self._keys, self._fields
                self._paying = len(keys) + len(fields)
                self._keys, self._fields = set(), set()
            try:
                carry_out(list(keys), list(fields))
            except BaseException:
                self.add(keys, fields)
                raise
            finally:
                self._paid, self._paying = (set(), set()), 0
