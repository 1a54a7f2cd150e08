"""Each switch of the proxy, seen from both ends of a connection."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import redis as redis_client
from redis.backoff import NoBackoff
from redis.retry import Retry

from hotplate.embedded import EmbeddedServer
from pipelines.lab.proxy import Proxy
from pipelines.lab.waiting import wait_until

Dial = Callable[[], socket.socket]

BLINK_S = 0.15
"""How long nothing must arrive for "nothing arrives"."""


class Peer:
    """A server that keeps what it reads, and the ends of the connections made to it."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
        self.address: tuple[str, int] = self.listener.getsockname()
        self.ends: list[socket.socket] = []

    def accept(self) -> socket.socket:
        self.listener.settimeout(5)
        end, _ = self.listener.accept()
        end.settimeout(5)
        self.ends.append(end)
        return end

    def close(self) -> None:
        for opened in [self.listener, *self.ends]:
            opened.close()


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.close()


@pytest.fixture
def proxy(peer: Peer) -> Iterator[Proxy]:
    with Proxy(peer.address) as made:
        yield made


@pytest.fixture
def dial(proxy: Proxy) -> Iterator[Dial]:
    """Connects clients, which are closed at the end."""
    with ExitStack() as stack:

        def connect() -> socket.socket:
            return stack.enter_context(socket.create_connection((proxy.host, proxy.port), 5))

        yield connect


def read(end: socket.socket, count: int) -> bytes:
    """Exactly so many bytes."""
    got = b""
    while len(got) < count:
        data = end.recv(count - len(got))
        assert data, f"ended after {got!r}"
        got += data
    return got


def is_silent(end: socket.socket) -> bool:
    """Whether nothing arrives, not even the end."""
    end.settimeout(BLINK_S)
    try:
        end.recv(1)
    except TimeoutError:
        return True
    finally:
        end.settimeout(5)
    return False


def test_it_passes_both_ways_and_counts(proxy: Proxy, peer: Peer, dial: Dial) -> None:
    client = dial()
    server = peer.accept()
    big = bytes(range(256)) * 8_000
    sender = threading.Thread(target=client.sendall, args=(big,))
    sender.start()
    assert read(server, len(big)) == big
    sender.join()
    server.sendall(b"reply")
    assert read(client, 5) == b"reply"
    counts = proxy.counts()
    assert (counts.accepted, counts.open, counts.to_server, counts.to_client) == (
        1, 1, len(big), 5,
    )  # fmt: skip
    client.shutdown(socket.SHUT_WR)  # one side ends, the other goes on
    assert server.recv(1) == b""
    server.sendall(b"more")
    server.close()
    assert client.recv(10) == b"more"
    assert client.recv(1) == b""
    wait_until(lambda: proxy.counts().open == 0)
    assert proxy.counts().to_client == 9


def test_a_paused_server_holds_everything(proxy: Proxy, peer: Peer, dial: Dial) -> None:
    client = dial()
    server = peer.accept()
    proxy.pause()
    client.sendall(b"held")
    server.sendall(b"back")
    late = dial()  # accepted all the same
    late.sendall(b"late")
    assert is_silent(server)
    assert is_silent(client)
    proxy.heal()
    assert read(server, 4) == b"held"
    assert read(client, 4) == b"back"
    assert read(peer.accept(), 4) == b"late"


def test_a_black_hole_drops_everything(proxy: Proxy, peer: Peer, dial: Dial) -> None:
    client = dial()
    server = peer.accept()
    proxy.blackhole()
    client.sendall(b"lost")
    server.sendall(b"lost")
    late = dial()
    late.sendall(b"lost")
    wait_until(lambda: proxy.counts().dropped == 12)
    server.close()  # nobody learns of it
    assert is_silent(client)
    proxy.heal()
    assert client.recv(1) == b""
    late.sendall(b"back")
    assert read(peer.accept(), 4) == b"back"


def test_a_client_that_gives_up_in_a_black_hole_leaves_nothing(proxy: Proxy, dial: Dial) -> None:
    proxy.blackhole()
    for _ in range(5):
        dial().close()
    wait_until(lambda: proxy.counts().accepted == 5 and proxy.counts().open == 0)


def test_replies_alone_are_dropped(proxy: Proxy, peer: Peer, dial: Dial) -> None:
    client = dial()
    server = peer.accept()
    proxy.drop_replies()
    client.sendall(b"write")
    assert read(server, 5) == b"write"
    server.sendall(b"reply")
    assert is_silent(client)
    proxy.heal()
    server.sendall(b"again")
    assert read(client, 5) == b"again"


@pytest.mark.parametrize("way", ["to_server", "to_client"])
def test_each_direction_has_a_delay_of_its_own(
    proxy: Proxy, peer: Peer, dial: Dial, way: str
) -> None:
    client = dial()
    server = peer.accept()
    ends = {"to_server": (client, server), "to_client": (server, client)}
    proxy.delay(**{way: 0.2})
    for name, (source, sink) in ends.items():
        began = time.monotonic()
        for _ in range(3):  # late, but not one after the other
            source.sendall(b"x")
        read(sink, 3)
        took = time.monotonic() - began
        assert (took >= 0.2) == (name == way)
        assert took < 0.5
    source, sink = ends[way]
    proxy.delay(**{way: 60})
    source.sendall(b"x")
    assert is_silent(sink)
    proxy.heal()  # what was under way arrives at once
    read(sink, 1)


def test_reset_tears_down_what_is_there(proxy: Proxy, peer: Peer, dial: Dial) -> None:
    client = dial()
    server = peer.accept()
    assert proxy.reset() == 1
    for end in (client, server):
        with pytest.raises(ConnectionResetError):
            end.recv(1)
    assert proxy.counts().open == 0
    dial().sendall(b"new")
    assert read(peer.accept(), 3) == b"new"


def test_refused_connections_leave_the_others_alone(proxy: Proxy, peer: Peer, dial: Dial) -> None:
    client = dial()
    server = peer.accept()
    for _ in range(2):
        proxy.refuse()
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            dial()
        client.sendall(b"x")
        assert read(server, 1) == b"x"
        proxy.heal()
        dial()
        peer.accept()


def test_a_server_that_is_down_resets_its_clients(proxy: Proxy, peer: Peer, dial: Dial) -> None:
    peer.close()
    with pytest.raises(ConnectionResetError):
        dial().recv(1)
    assert proxy.counts().unreachable == 1
    with socket.create_server(("127.0.0.1", 0)) as other:
        proxy.retarget(other.getsockname())
        dial().sendall(b"x")
        end, _ = other.accept()
        with end:
            assert read(end, 1) == b"x"


def test_bandwidth_is_limited(proxy: Proxy, peer: Peer, dial: Dial) -> None:
    client = dial()
    server = peer.accept()
    proxy.limit(to_client=100_000)
    began = time.monotonic()
    server.sendall(bytes(30_000))
    read(client, 30_000)
    assert 0.28 < time.monotonic() - began < 1
    server.sendall(bytes(1_000_000))
    proxy.heal()
    began = time.monotonic()
    read(client, 1_000_000)
    assert time.monotonic() - began < 2


def test_bytes_are_corrupted_at_a_fixed_distance(proxy: Proxy, peer: Peer, dial: Dial) -> None:
    client = dial()
    server = peer.accept()
    proxy.corrupt(to_client=4)
    for part in (b"abc", b"def", b"ghijklmnopq"):
        server.sendall(part)
    expected = bytearray(b"abcdefghijklmnopq")
    for index in range(3, len(expected), 4):
        expected[index] ^= 0xFF
    assert read(client, len(expected)) == bytes(expected)
    client.sendall(b"untouched")
    assert read(server, 9) == b"untouched"
    proxy.heal()
    server.sendall(b"abcdefgh")
    assert read(client, 8) == b"abcdefgh"


def test_hundreds_of_connections(proxy: Proxy, peer: Peer, dial: Dial) -> None:
    clients = [dial() for _ in range(300)]
    servers = [peer.accept() for _ in clients]
    for number, client in enumerate(clients):
        client.sendall(b"%3d" % number)
    assert sorted(int(read(server, 3)) for server in servers) == list(range(300))

    def cost() -> float:
        used = time.process_time()
        assert is_silent(clients[0])
        return time.process_time() - used

    idle = max(cost() for _ in range(5))  # threads of earlier tests may do something meanwhile
    proxy.pause()
    assert min(cost() for _ in range(5)) < idle + BLINK_S / 2  # holding costs nothing
    proxy.heal()
    assert proxy.reset() == 300


def test_closing_leaves_nothing(peer: Peer) -> None:
    before = set(threading.enumerate())  # an idle one of an earlier test may end meanwhile
    proxy = Proxy(peer.address)
    with socket.create_connection((proxy.host, proxy.port)) as client:
        peer.accept()
        proxy.pause()
        proxy.close()
        proxy.close()
        assert client.recv(1) == b""
    assert set(threading.enumerate()) - before == set()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((proxy.host, proxy.port))


def test_in_front_of_a_real_server(redis: EmbeddedServer) -> None:
    """Commands pass, time out while it is frozen, and pass again."""
    with (
        Proxy((redis.host, redis.port)) as proxy,
        redis_client.Redis(
            port=proxy.port, socket_timeout=0.2, retry=Retry(NoBackoff(), 0)
        ) as client,
    ):
        assert client.ping()
        proxy.pause()
        with pytest.raises(redis_client.TimeoutError):
            client.ping()
        proxy.heal()
        assert client.ping()
        proxy.corrupt(to_client=1)
        with pytest.raises(redis_client.RedisError):
            client.ping()
