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

The nonces are read, and made where there are none, before it is made sure that the features which
go into the model are still those that the cache holds. An invalidation that comes later deletes a
nonce that the output then lacks (promise 3). Another version of the model, schema or policy has
other keys. The age is judged by two clocks, as that of rows (`hotplate.tiers.shared`).
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from hotplate.contracts import View
from hotplate.errors import CommandRefused, ServerError
from hotplate.keys import Key
from hotplate.servers.pool import Command
from hotplate.tiers.shared import Moment, SharedTier

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
        slot: where another one may be put; None where the tier cannot be used.
    """

    value: bytes | None = None
    form: bytes = b""
    left_ns: int = 0
    slot: OutputSlot | None = None


_NOTHING: Final = FoundOutput()


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

    def look(self, asked: Sequence[tuple[bytes, Sequence[tuple[View, Key]]]]) -> list[FoundOutput]:
        """Find outputs, in one round trip; in another, make the ties that are missing.

        Args:
            asked: the key of each input, and the entities that its features are of.
        """
        tier = self._tier
        try:
            if tier.is_usable:
                return self._look(asked)
        except (ServerError, TypeError, ValueError) as error:  # the latter: a garbled answer
            tier.failed(error)
        return [_NOTHING] * len(asked)

    def _look(self, asked: Sequence[tuple[bytes, Sequence[tuple[View, Key]]]]) -> list[FoundOutput]:
        tier = self._tier
        keys = [self._prefix + blake2b(key, digest_size=16).digest() for key, _ in asked]
        ties = [[(tier.field_of(view), tier.tie(view, key)) for view, key in on] for _, on in asked]
        distinct = list(dict.fromkeys(tie for of_row in ties for _, tie in of_row))
        fields = tuple(dict.fromkeys(field for of_row in ties for field, _ in of_row))
        moment, values = tier.read((self._field, *fields), [*keys, *distinct])
        generations = dict(zip((self._field, *fields), moment.generations, strict=True))
        nonces = dict(zip(distinct, values[len(keys) :], strict=True))
        self._make(nonces)
        found = []
        for (key, _), at, of_row, entry in zip(asked, keys, ties, values, strict=False):
            own = [generations[self._field]]
            for field, tie in of_row:
                own += generations[field], nonces[tie] or b""
            if any(nonces[tie] is None for _, tie in of_row):
                found.append(_NOTHING)
                continue
            slot = OutputSlot(at, key, blake2b(b"".join(own), digest_size=16).digest(), moment)
            found.append(self._open(entry, slot) if entry is not None else FoundOutput(slot=slot))
        return found

    def _make(self, nonces: dict[bytes, Any]) -> None:
        """Make the ties that are not there, or are nothing that a tie can be."""
        commands: list[Command] = []
        for tie, nonce in nonces.items():
            if nonce is None or len(nonce) != _NONCE_BYTES:
                made = os.urandom(_NONCE_BYTES)
                unless = () if nonce is not None else ("NX",)
                nonces[tie] = made
                commands.append((tie, ("SET", tie, made, *unless, "GET", "PX", self._tie_ms)))
        if not commands:
            return
        try:
            replies = self._tier.run(commands)
        except CommandRefused as refusal:
            self._tier.failed_to_write(refusal)
            nonces.update((tie, None) for tie, _ in commands)
            return
        for (tie, command), reply in zip(commands, replies, strict=True):
            if isinstance(reply, CommandRefused):  # something that is no string lies there
                self.rejected += 1
                nonces[tie] = None
                self._tier.run([(tie, ("UNLINK", tie))])
            elif reply is not None and "NX" in command:  # another process was faster
                nonces[tie] = reply if len(reply) == _NONCE_BYTES else None

    def _open(self, entry: bytes, slot: OutputSlot) -> FoundOutput:
        empty = FoundOutput(slot=slot)
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
        return FoundOutput(entry[begins:], form, left_ns, slot) if left_ns > 0 else empty

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


def _crc(slot: OutputSlot, rest: bytes) -> int:
    return zlib.crc32(rest, zlib.crc32(slot.key, zlib.crc32(slot.at)))
