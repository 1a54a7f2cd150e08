"""Worker processes over one feature repo: started, told what to do, killed, and their histories."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .history import Records, load_history
from .plan import Plan

__all__ = ["Fleet", "Nursery", "Tally"]

_ROOT = Path(__file__).resolve().parents[2]
_ANSWER_WITHIN_S = 60.0
_COME_WITHIN_S = 180.0  # each imports Feast, on a machine that may have other things to do
_NURSERY = 0


@dataclass
class Tally:
    """How many operations workers have done, and the errors that some of them met."""

    done: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)


class _Member:
    """The fleet's end of a line to a worker."""

    def __init__(self, line: socket.socket) -> None:
        line.settimeout(_ANSWER_WITHIN_S)
        self.line = line
        self._answers = line.makefile("rb")
        hello = self.answer()
        self.number, self.pid = int(hello["number"]), int(hello["pid"])

    def tell(self, what: str, **command: Any) -> None:
        self.line.sendall(json.dumps({"do": what, **command}).encode() + b"\n")

    def answer(self) -> dict[str, Any]:
        text = self._answers.readline()
        if not text:
            raise ConnectionError("the worker is gone")
        answer: dict[str, Any] = json.loads(text)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def ask(self, what: str, **command: Any) -> dict[str, Any]:
        self.tell(what, **command)
        return self.answer()

    def await_end(self) -> None:
        """Read until the worker has ended; one that does not is killed."""
        try:
            with contextlib.suppress(ConnectionError):
                while self._answers.readline():
                    pass
        except TimeoutError:
            os.kill(self.pid, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        self._answers.close()
        self.line.close()


class _Switchboard:
    """A socket that workers connect to, and the programs started to do so."""

    def __init__(self) -> None:
        # not the test's own folder: the path of a socket may have about 100 bytes
        self.folder = Path(tempfile.mkdtemp(prefix="fleet-"))
        self.address = str(self.folder / "line")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.settimeout(_COME_WITHIN_S)
        self._listener.bind(self.address)
        self._listener.listen(64)
        self._programs: list[subprocess.Popen[bytes]] = []
        self._log = self.folder / "log"

    def start(self, number: int) -> None:
        """Start a program of its own for a worker."""
        paths = os.pathsep.join([str(_ROOT), str(_ROOT / "plugins")])
        command = [sys.executable, "-W", "ignore", "-m", "pipelines.lab.worker"]
        with self._log.open("ab") as log:
            started = subprocess.Popen(
                [*command, self.address, str(number)],
                cwd=_ROOT,
                env={**os.environ, "PYTHONPATH": paths},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._programs.append(started)

    def accept(self) -> _Member:
        """The next worker that connects."""
        try:
            return _Member(self._listener.accept()[0])
        except TimeoutError:
            raise TimeoutError(f"no worker has come; {self.last_words()}") from None

    def last_words(self) -> str:
        """The end of what the programs printed."""
        text = self._log.read_text() if self._log.exists() else ""
        return f"the programs said:\n{text[-3_000:]}"

    def close(self) -> None:
        self._listener.close()
        for program in self._programs:
            program.wait(_ANSWER_WITHIN_S)
        shutil.rmtree(self.folder)


class Nursery:
    """A program that has imported everything; workers forked from it are there at once."""

    def __init__(self) -> None:
        self._board = _Switchboard()
        self._board.start(_NURSERY)
        self._member = self._board.accept()

    def fork(self, address: str, number: int) -> None:
        """Let a new worker connect to that address."""
        self._member.ask("fork", address=address, number=number)

    def last_words(self) -> str:
        """The end of what it and the workers forked from it printed."""
        return self._board.last_words()

    def close(self) -> None:
        self._member.close()
        self._board.close()


class Fleet:
    """Workers that follow one plan; a context manager that ends them at the end of the block.

    Args:
        plan: what they do.
        count: how many there are, numbered from 1.
        faults: by number, which of `worker.FAULTS` a worker has.
        nursery: where they are forked from; without one each is a program started for itself,
            which takes seconds.
    """

    def __init__(
        self,
        plan: Plan,
        count: int,
        *,
        faults: Mapping[int, str] | None = None,
        nursery: Nursery | None = None,
    ) -> None:
        Path(plan.histories).mkdir(parents=True, exist_ok=True)
        self.plan = plan
        self.members: dict[int, _Member] = {}
        self._numbers = itertools.count(1)
        self._board = _Switchboard()
        self._last_words = self._board.last_words if nursery is None else nursery.last_words
        try:
            for number in itertools.islice(self._numbers, count):
                if nursery is None:
                    self._board.start(number)
                else:
                    nursery.fork(self._board.address, number)
            for _ in range(count):
                self._admit()
            for number, member in self.members.items():
                member.tell("open", plan=plan.to_json(), fault=(faults or {}).get(number))
            for member in self.members.values():
                member.answer()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _admit(self) -> int:
        member = self._board.accept()
        self.members[member.number] = member
        return member.number

    def run(self, seconds: float) -> Tally:
        """Let all of them work for so long.

        Raises:
            ConnectionError: a worker ended.
        """
        self.resume()
        lines = [member.line for member in self.members.values()]
        if select.select(lines, [], [], seconds)[0]:
            raise ConnectionError(f"a worker ended; {self._last_words()}")
        return self.pause()

    def resume(self, *numbers: int) -> None:
        """Let workers begin or go on; all of them if none is named."""
        for member in self._chosen(numbers):
            member.ask("resume")

    def pause(self, *numbers: int) -> Tally:
        """Let workers end what they are doing; what they have done since they were started."""
        chosen = self._chosen(numbers)
        for member in chosen:
            member.tell("pause")
        tally = Tally()
        for member in chosen:
            answer = member.answer()
            tally.done.update(answer["done"])
            tally.errors.update(answer["errors"])
        return tally

    def states(self) -> list[dict[str, Any]]:
        """How each worker stands with the server on which they meet; see `Worker.do_state`."""
        for member in self.members.values():
            member.tell("state")
        return [member.answer() for member in self.members.values()]

    def fork(self, number: int) -> int:
        """Let a worker fork, going or not; return the number of the child, which waits."""
        child = next(self._numbers)
        self.members[number].ask("fork", address=self._board.address, number=child)
        return self._admit()

    def step_clock(self, number: int, seconds: float) -> None:
        """Set a worker's wall clock by so much from the machine's."""
        self.members[number].ask("step_clock", seconds=seconds)

    def freeze(self, number: int) -> None:
        """Stop a worker (SIGSTOP) in whatever it is doing."""
        os.kill(self.members[number].pid, signal.SIGSTOP)

    def thaw(self, number: int) -> None:
        os.kill(self.members[number].pid, signal.SIGCONT)

    def kill(self, number: int) -> None:
        """End a worker (SIGKILL) in whatever it is doing."""
        member = self.members.pop(number)
        os.kill(member.pid, signal.SIGKILL)
        member.await_end()

    def history(self) -> Records:
        """What all of them have written down, those that were killed included."""
        return load_history(Path(self.plan.histories))

    def close(self) -> None:
        """End every worker that is left."""
        for number in list(self.members):
            self.thaw(number)
            member = self.members.pop(number)
            with contextlib.suppress(OSError):
                member.tell("stop")
            member.await_end()
        self._board.close()

    def _chosen(self, numbers: tuple[int, ...]) -> list[_Member]:
        return [self.members[number] for number in numbers or self.members]
