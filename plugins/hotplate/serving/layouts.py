"""Which layouts the logs of an event view are kept in, and which of them are complete.

Windows that need other tiles or look further back than the ones before need logs of another layout,
and those begin empty. An empty log reads as "nothing happened", so what is missing must be known:
beside the logs of each event view lies a hash that names its layouts, by their fingerprints, and
says which of them have the history that their windows look back on.

- `feast apply` enters a layout. The first one of an event view is complete: nothing happened
  before. A later one is not, until it has been seeded.
- A read of windows over a layout that is not complete, or not there (the server has lost its
  data), is refused.
- A writer writes to every layout that is there. So processes that still read an older one, because
  their registry is cached, are not left behind, and a new one misses nothing while it is seeded.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Final
from urllib.parse import quote

from hotplate.windows.errors import WindowStateError
from hotplate.windows.redis_state import LogServer

__all__ = ["Layouts"]

_COMPLETE: Final = b"complete:"
_LOOK_AGAIN_S: Final = 10.0
# layouts of logs of this process's own, as a server would keep them
_own: Final[dict[bytes, dict[bytes, bytes]]] = {}
_log = logging.getLogger("hotplate.windows")


class Layouts:
    """The layouts of the event views of one project.

    Args:
        project: the Feast project.
        place: the server that keeps the logs; None where they are this process's own.

    Raises:
        ServerError: (every method) the server does not answer.
    """

    def __init__(self, project: str, place: LogServer | None) -> None:
        self._project = project
        self._place = place
        self._complete: dict[tuple[str, str], tuple[int, float]] = {}
        self._others: dict[str, tuple[float, dict[bytes, bytes]]] = {}

    def _key(self, view: str) -> bytes:
        parts = (quote(part, safe="") for part in (self._project, view))
        return ("hotplate:windows:" + ":".join(parts)).encode()

    def _read(self, view: str) -> dict[bytes, bytes]:
        key = self._key(view)
        if self._place is None:
            return dict(_own.get(key, {}))
        flat: list[bytes] = self._place.ask([(key, (b"HGETALL", key))])[0]
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def _write(self, view: str, fields: dict[bytes, bytes]) -> None:
        key = self._key(view)
        if self._place is None:
            _own.setdefault(key, {}).update(fields)
        else:
            flat = [part for pair in fields.items() for part in pair]
            self._place.ask([(key, (b"HSET", key, *flat))])
        self._others.pop(view, None)

    def admit(self, view: str, fingerprint: str, tag: str, *, is_new: bool) -> None:
        """Enter a layout.

        Args:
            view: the event view.
            fingerprint: of the layout.
            tag: of the event view, which says all about the layout.
            is_new: whether nothing has happened yet where no layout is known, as at a first `feast
                apply`. Otherwise the server has lost its data.
        """
        known, mark = self._read(view), fingerprint.encode()
        fields = {mark: tag.encode()}
        if not known and is_new:
            fields[_COMPLETE + mark] = b"1"
            _log.info("event view %s: its logs begin empty", view)
        elif known and mark not in known:
            _log.warning(
                "event view %s: its windows need another layout of the logs, which begin empty. "
                "Reads of them are refused until `hotplate windows seed %s` has filled them; "
                "events are written to both layouts meanwhile",
                view,
                view,
            )
        if known.get(mark) != tag.encode():
            self._write(view, fields)

    def ensure_complete(self, view: str, fingerprint: str) -> None:
        """Refuse to read logs that lack history.

        Raises:
            WindowStateError: they do.
        """
        term = 0 if self._place is None else self._place.term
        believed, looked_s = self._complete.get((view, fingerprint), (-1, 0.0))
        now_s = time.monotonic()
        if believed == term and now_s - looked_s < _LOOK_AGAIN_S:
            return
        known = self._read(view)
        if not known and self._place is None:
            self._complete[view, fingerprint] = (term, now_s)
            _own[self._key(view)] = {
                fingerprint.encode(): b"",
                _COMPLETE + fingerprint.encode(): b"1",
            }
            return
        if _COMPLETE + fingerprint.encode() in known:
            self._complete[view, fingerprint] = (term, now_s)
            return
        if fingerprint.encode() in known:
            raise WindowStateError(
                f"the logs of event view {view!r} were laid out anew and lack what happened before",
                fix=f"Run `hotplate windows seed {view}`.",
            )
        raise WindowStateError(
            f"the server knows no logs of event view {view!r}",
            fix="If it is new, run `feast apply`. If the server has lost its data, run `hotplate "
            f"windows seed {view}` after it.",
        )

    def others(self, view: str, fingerprint: str) -> list[str]:
        """The tags of the other layouts that are written to."""
        now = time.monotonic()
        looked, known = self._others.get(view, (-_LOOK_AGAIN_S, {}))
        if now - looked >= _LOOK_AGAIN_S:
            known = self._read(view)
            self._others[view] = (now, known)
        own = fingerprint.encode()
        return [
            tag.decode()
            for mark, tag in known.items()
            if mark != own and not mark.startswith(_COMPLETE) and tag
        ]

    def complete(self, view: str, fingerprint: str) -> None:
        """From now on the logs of a layout have their history."""
        self._write(view, {_COMPLETE + fingerprint.encode(): b"1"})

    def retire_others(self, view: str, fingerprint: str) -> int:
        """From now on only this layout is there; how many others there were."""
        others = set(self.known(view)) - {fingerprint}
        for other in others:
            self.retire(view, other)
        return len(others)

    def retire(self, view: str, fingerprint: str) -> None:
        """From now on a layout is not there any more."""
        key, mark = self._key(view), fingerprint.encode()
        fields = (mark, _COMPLETE + mark)
        if self._place is None:
            for field in fields:
                _own.get(key, {}).pop(field, None)
        else:
            self._place.ask([(key, (b"HDEL", key, *fields))])
        self._others.pop(view, None)

    def known(self, view: str) -> dict[str, bool]:
        """Fingerprint -> whether it is complete, of every layout that is there."""
        known: dict[bytes, Any] = self._read(view)
        return {
            mark.decode(): _COMPLETE + mark in known
            for mark in known
            if not mark.startswith(_COMPLETE)
        }
