"""The shared tier of model outputs: what one process computed, for the others.

It lies on the server of the shared rows, and what ends those ends it: an output hangs on a *tie* an
entity of a feature view, a key beside the key of the row with a random nonce in it. Who invalidates
the entity deletes both in one command, and scans nothing. An output is served only while the nonces
are those that it was computed under, and while the generations of the views and of the model are::

    offset  size  what
         0     1  version of this format
         1     4  CRC-32 of the key, of the input and of everything behind this field
         5    16  digest of the generations and of the nonces of its ties
        21     8  the server's clock when its nonces were read, us
        29     8  the wall clock of the process that read them, at the same moment, us
        37     8  how long after that it may be served, us
        45     1  length of the form
        46     .  the form: dtype and shape of one output, as text; then its bytes

The nonces are read, and made where there are none, before it is made sure that the rows of features
are still what the shared tier holds: what a process has in memory may have been invalidated without
its having heard of it. An invalidation that came before has deleted the row; one that comes later
deletes the nonce, too, and the output lacks it (promise 3). Outputs of rows that the shared tier
does not hold stay in the process. Another version of the model, schema or policy has
other keys. The age is judged by two clocks, as that of rows (`hotplate.tiers.shared`).
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote

from hotplate.contracts import View
from hotplate.errors import CommandRefused, ServerError
from hotplate.keys import Key
from hotplate.servers.pool import Command
from hotplate.tiers.shared import SharedTier, tie_of
from hotplate.tiers.slots import Moment

__all__ = ["FoundOutput", "OutputSlot", "SharedOutputs"]

_HEAD: Final = struct.Struct(">BI16sQQQB")
_VERSION: Final = 1
_CHECKED_AT: Final = 5
_NONCE_BYTES: Final = 16
_FORM: Final = re.compile(rb"[<>|=][fiub][0-9]{1,2}:[0-9,]*")
_LONGEST_MS: Final = 24 * 3_600_000
# A tie that is gone ends the outputs that hang on it: it lives several times as long as they do.
_TIE_LIVES: Final = 10


class OutputSlot(NamedTuple):
    """Where an output may be put, and under which nonces it was computed."""

    at: bytes
    key: bytes
    origin: bytes
    moment: Moment


class FoundOutput(NamedTuple):
    """What the tier has for one input.

    Attributes:
        value: the output, or None.
        form: dtype and shape of it, see `form_of`.
        left_ns: how much longer it may be served.
        slot: where another one may be put; None where the tier cannot be used, or does not hold
            the rows of features any more.
    """

    value: bytes | None = None
    form: bytes = b""
    left_ns: int = 0
    slot: OutputSlot | None = None


_NOTHING: Final = FoundOutput()

AskedOutput: TypeAlias = tuple[bytes, Sequence[tuple[View, Key, bytes]]]
"""The key of an input; of each row of its features the view, the key and what memory holds."""


class SharedOutputs:
    """The outputs of one version of one model on the server of the shared rows.

    No method raises for a fault of the server: what cannot be had is a miss.

    Args:
        tier: of the rows.
        model: its name.
        identity: version, inputs and policy: whatever makes another cache.
        ttl_ns: how long an output lives at the most.
    """

    def __init__(self, tier: SharedTier, model: str, identity: Sequence[str], ttl_ns: int) -> None:
        self._tier = tier
        digest = blake2b(repr((model, *identity)).encode(), digest_size=12).hexdigest()
        name = f"{quote(tier.project, safe='')}:{quote(model, safe='')}:{digest}:"
        self._prefix = f"hotplate:output:{name}".encode()
        self._field = f"*output:{digest}".encode()  # no view has such a name
        self._tie_ms = min(_LONGEST_MS, max(1, _TIE_LIVES * ttl_ns // 1_000_000))
        self.rejected = self.too_large = 0

    def look(self, asked: Sequence[AskedOutput]) -> list[FoundOutput]:
        """Find outputs, in one round trip; in another, make the ties that are missing.

        Args:
            asked: the key of each input, and the rows that its features are of: the entity, and
                what memory says of it.
        """
        tier = self._tier
        try:
            if tier.is_usable:
                return self._look(asked)
        except (ServerError, TypeError, ValueError) as error:  # the latter: a garbled answer
            tier.failed(error)
        return [_NOTHING] * len(asked)

    def _look(self, asked: Sequence[AskedOutput]) -> list[FoundOutput]:
        tier = self._tier
        keys = [self._prefix + blake2b(key, digest_size=16).digest() for key, _ in asked]
        ats = [[tier.row_at(view, key) for view, key, _ in on] for _, on in asked]
        distinct = list(dict.fromkeys(at for of_output in ats for at in of_output))
        views = dict.fromkeys(view for _, on in asked for view, _, _ in on)
        fields = tuple(dict.fromkeys(tier.field_of(view) for view in views))
        ties = [tie_of(at) for at in distinct]
        moment, values = tier.read((self._field, *fields), [*keys, *ties, *distinct])
        generations = dict(zip((self._field, *fields), moment.generations, strict=True))
        of_view = {view: generations[tier.field_of(view)] for view in views}
        begins = len(keys) + len(ties)
        nonces = dict(zip(distinct, values[len(keys) : begins], strict=True))
        entries: dict[bytes, Any] = dict(zip(distinct, values[begins:], strict=True))
        self._make(nonces, entries)
        found = []
        for (key, on), at, of_output, entry in zip(asked, keys, ats, values, strict=False):
            own = [generations[self._field]]
            is_current = True
            for (view, _, row), row_at in zip(on, of_output, strict=True):
                own += of_view[view], nonces[row_at] or b""
                is_current = (
                    is_current
                    and nonces[row_at] is not None
                    and tier.is_same_row(view, entries[row_at], of_view[view], row)
                )
            slot = OutputSlot(at, key, blake2b(b"".join(own), digest_size=16).digest(), moment)
            one = FoundOutput() if entry is None else self._open(entry, slot)
            found.append(one._replace(slot=slot) if is_current else one)
        return found

    def _make(self, nonces: dict[bytes, Any], entries: dict[bytes, Any]) -> None:
        """Make the ties that are not there, or are nothing that a tie can be; then read the rows.

        Args:
            nonces: of the tie of each row, by the key of the row; None where there is none.
            entries: what lies under the keys of the rows; those whose tie was made are read again.
        """
        commands: list[Command] = []
        missing = [at for at, nonce in nonces.items() if not _is_nonce(nonce)]
        for at in missing:
            unless = ("NX",) if nonces[at] is None else ()
            nonces[at] = os.urandom(_NONCE_BYTES)
            tie = tie_of(at)
            commands += [
                (tie, ("SET", tie, nonces[at], *unless, "GET", "PX", self._tie_ms)),
                (at, ("GET", at)),
            ]
        if not commands:
            return
        try:
            replies = self._tier.run(commands)
        except CommandRefused as refusal:
            self._tier.failed_to_write(refusal)
            nonces.update(dict.fromkeys(missing))
            return
        for at, (tie, command), reply, entry in zip(
            missing, commands[::2], replies[::2], replies[1::2], strict=True
        ):
            entries[at] = entry
            if isinstance(reply, CommandRefused):  # something that is no string lies there
                self.rejected += 1
                nonces[at] = None
                self._tier.run([(tie, ("UNLINK", tie))])
            elif reply is not None and "NX" in command:  # another process was faster
                nonces[at] = reply if _is_nonce(reply) else None

    def _open(self, entry: bytes, slot: OutputSlot) -> FoundOutput:
        empty = FoundOutput()
        if len(entry) < _HEAD.size or entry[0] != _VERSION:
            self.rejected += 1
            return empty
        _, crc, origin, server_us, wall_us, life_us, width = _HEAD.unpack_from(entry)
        if crc != _crc(slot, entry[_CHECKED_AT:]):
            self.rejected += 1
            return empty
        if origin != slot.origin:  # one of its entities was invalidated: no fault of the entry
            return empty
        begins = _HEAD.size + width
        form = entry[_HEAD.size : begins]
        now = slot.moment
        if now.server_us < server_us or not _FORM.fullmatch(form):
            self.rejected += 1  # the server's clock went back: nothing is known
            return empty
        age_us = max(now.server_us - server_us, now.wall_us - wall_us)
        left_ns = (life_us - age_us) * 1_000
        return FoundOutput(entry[begins:], form, left_ns) if left_ns > 0 else empty

    def put(self, items: Iterable[tuple[OutputSlot, bytes, bytes, int]]) -> None:
        """Keep outputs for the others.

        Args:
            items: (slot as `look` returned it, form, output, deadline on the cache's clock).
        """
        commands: list[Command] = []
        for slot, form, value, deadline_ns in items:
            if len(value) > self._tier.bounds.max_bytes:
                self.too_large += 1
                continue
            life_us = min((deadline_ns - slot.moment.now_ns) // 1_000, _LONGEST_MS * 1_000)
            if life_us < 1_000:
                continue
            clocks = slot.moment.server_us, slot.moment.wall_us
            rest = _HEAD.pack(_VERSION, 0, slot.origin, *clocks, life_us, len(form))[_CHECKED_AT:]
            rest += form + value
            entry = struct.pack(">BI", _VERSION, _crc(slot, rest)) + rest
            commands.append((slot.at, ("SET", slot.at, entry, "PX", life_us // 1_000)))
        if not commands or not self._tier.is_usable:
            return
        try:
            self._tier.run(commands)
        except ServerError as error:
            self._tier.failed_to_write(error)

    def forget(self) -> None:
        """Make every output of the model, here and in other processes, one of before."""
        self._tier.forget_fields([self._field])


def _is_nonce(found: Any) -> bool:
    return isinstance(found, bytes) and len(found) == _NONCE_BYTES


def _crc(slot: OutputSlot, rest: bytes) -> int:
    return zlib.crc32(rest, zlib.crc32(slot.key, zlib.crc32(slot.at)))
