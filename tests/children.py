"""What a child process finds that may do less than the tests."""

from __future__ import annotations

import ctypes
import json
import os
import traceback
from collections.abc import Callable
from typing import Any, Final

__all__ = ["heed_permissions", "in_child"]

_CAPABILITIES_V3: Final = 0x20080522
_DAC_OVERRIDE, _DAC_READ_SEARCH = 1, 2


def in_child(work: Callable[[], Any]) -> Any:
    """What a function returns in a forked child, as JSON has it."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(reads)
            said = json.dumps(work()).encode()
            with open(writes, "wb") as pipe:
                pipe.write(said)
            status = 0
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(status)
    os.close(writes)
    with open(reads, "rb") as pipe:
        found = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return json.loads(found)


def heed_permissions() -> None:
    """From now on permissions of files hold for this process, as for any user, if it is root's."""
    if os.geteuid():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    head, sets = (ctypes.c_uint32 * 2)(_CAPABILITIES_V3, 0), (ctypes.c_uint32 * 6)()
    if libc.capget(head, sets):
        raise OSError(ctypes.get_errno(), "capget")
    for place in (0, 1):  # what is effective, and what might become so
        sets[place] &= ~(1 << _DAC_OVERRIDE | 1 << _DAC_READ_SEARCH)
    if libc.capset(head, sets):
        raise OSError(ctypes.get_errno(), "capset")
