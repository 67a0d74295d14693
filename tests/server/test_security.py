import random
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from socket import MSG_PEEK, create_connection, socket
from typing import Any

import pytest
import zmq

import gpupipe
from gpupipe.protocol import codec, messages, peers
from gpupipe.server.metrics import fetch_stats
from gpupipe.server.options import parse_options
from helpers.lease_tables import hello
from helpers.served import serving


@pytest.fixture
def pairs(tmp_path: Path) -> dict[str, tuple[Path, Path]]:
    """Keys of a server, of a client that it knows, and of a stranger."""
    found = {
        name: peers.create_keys(tmp_path / name, name) for name in ("server", "known", "stranger")
    }
    (tmp_path / "allowed").mkdir()
    (tmp_path / "allowed" / "known.key").write_text(found["known"][0].read_text())
    return found


@pytest.fixture
def secured(pairs: dict[str, tuple[Path, Path]], tmp_path: Path) -> dict[str, Any]:
    return {"keys": pairs["server"][1], "allowed": tmp_path / "allowed"}


def test_only_listed_keys_get_in(
    config: dict[str, Any],
    pairs: dict[str, tuple[Path, Path]],
    secured: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    public = pairs["server"][0]
    refused = peers.load_keys(pairs["stranger"][0], False)[0].decode()
    with serving(config, address="tcp://0.0.0.0:0", **secured) as server:
        address = server.address.replace("0.0.0.0", "127.0.0.1")
        for transport in ("tcp", "auto"):
            with gpupipe.connect(
                address,
                device="cpu",
                ids=True,
                key=pairs["known"][1],
                server_key=public,
                transport=transport,
            ) as loader:
                assert sorted(i for b in loader for i in b["id"].tolist()) == list(range(23))
        assert fetch_stats(address, pairs["known"][1], public)["malformed"] == 0
        for wrong in (
            {},
            {"key": pairs["stranger"][1], "server_key": public},
            {"key": pairs["known"][1], "server_key": pairs["stranger"][0]},
        ):
            with pytest.raises(gpupipe.ServerError, match="are the keys right"):
                gpupipe.connect(address, device="cpu", patience=0.5, **wrong)
        with pytest.raises(gpupipe.ServerError, match="where it has keys"):
            fetch_stats(address, patience=0.5)
        with gpupipe.connect(
            address, device="cpu", key=pairs["known"][1], server_key=public
        ) as loader:
            assert len(list(loader)) == len(loader), "and it goes on"
    told = [r.getMessage() for r in caplog.records if "refused a client" in r.getMessage()]
    assert len(told) == 1, "although that client tried again and again"
    assert f"public key, {refused}, is not in {secured['allowed']}" in told[0]


def test_keys_are_files_that_others_cannot_read(
    pairs: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    public, secret = pairs["server"]
    assert secret.stat().st_mode & 0o077 == 0
    with pytest.raises(gpupipe.ServerError, match="there already"):
        peers.create_keys(public.parent, "server")
    with pytest.raises(gpupipe.ServerError, match="holds no secret key"):
        peers.load_keys(public, True)
    secret.chmod(0o644)
    with pytest.raises(gpupipe.ServerError, match="chmod 600"):
        peers.load_keys(secret, True)
    with pytest.raises(gpupipe.ServerError, match="nowhere: no such key file"):
        peers.load_keys(tmp_path / "nowhere", False)
    with pytest.raises(gpupipe.ServerError, match="no client could connect"):
        parse_options(
            {"address": "tcp://0.0.0.0:0", "keys": secret, "allowed": public.parent.parent}
        )


def _hostile(context: Any, address: str, kind: Any = zmq.DEALER) -> Any:
    socket = context.socket(kind)
    socket.linger = 0
    socket.connect(address)
    return socket


def test_one_that_asks_and_never_reads_gets_few_answers(config: dict[str, Any]) -> None:
    """Else its answers would lie in the server's memory."""
    with (
        serving(config) as server,
        zmq.Context() as context,
        _hostile(context, server.address) as greedy,
        _hostile(context, server.address) as other,
    ):
        for number in range(3000):
            greedy.send(codec.encode(messages.GetStats()))
            greedy.send(codec.encode(hello("e" * 32, number=number, wants_shared_memory=True)))
        greedy.send(codec.encode(messages.Ping()))
        answers = []
        while not answers or not isinstance(answers[-1], messages.Pong):
            assert greedy.poll(20_000)
            answers.append(codec.decode_from_server(greedy.recv_multipart()))
        assert len(answers) < 200
        other.send(codec.encode(messages.GetStats()))
        assert other.poll(20_000), "others get theirs"


@pytest.mark.parametrize(
    "begin",
    [
        messages.StartIteration(1, 2**62 - 1, 0, -1),
        messages.StartIteration(1, 0, 2**62 - 1, -1),
        messages.StartIteration(2**62 - 1, 0, 0, 2**62 - 1),
    ],
    ids=str,
)
def test_a_place_that_is_none_does_no_harm(
    config: dict[str, Any], begin: messages.StartIteration
) -> None:
    with (
        serving(config) as server,
        zmq.Context() as context,
        _hostile(context, server.address) as odd,
    ):
        odd.send(codec.encode(hello("e" * 32, wants_shared_memory=True)))
        odd.send(codec.encode(begin))
        odd.send(codec.encode(messages.CloseSession("e" * 32, [(2**62 - 1, 2**62 - 1)])))
        answer: Any = None
        while not isinstance(answer, messages.SessionClosed):
            assert odd.poll(20_000)  # until then, others may join its pass
            answer = codec.decode_from_server(odd.recv_multipart())
        with gpupipe.connect(server.address, device="cpu", ids=True) as loader:
            assert sorted(i for b in loader for i in b["id"].tolist()) == list(range(23))


@contextmanager
def _raw(address: str) -> Iterator[socket]:
    """A connection that has shaken hands as ZeroMQ does (ZMTP 3.0), and may now say what ZeroMQ
    never would.
    """
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16 + 32)
    ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
    with create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=20) as raw:
        raw.sendall(greeting)
        while len(raw.recv(64, MSG_PEEK)) < 64:
            time.sleep(0.01)
        raw.sendall(b"\x04" + bytes([len(ready)]) + ready)
        while len(raw.recv(100, MSG_PEEK)) < 100:  # the server's greeting, and that it is ready
            time.sleep(0.01)
        yield raw


def test_a_message_that_announces_more_than_may_be_is_cut_off(config: dict[str, Any]) -> None:
    with serving(config) as server:
        for size in (codec.HEAD_LIMIT + 1, 2**40, 2**63 - 1):
            with _raw(server.address) as raw:
                raw.recv(1000)
                raw.sendall(b"\x02" + size.to_bytes(8, "big"))
                assert raw.recv(1) == b"", "before any of it came"
        assert server.stats()["cut_connections"] == 0, "ZeroMQ's own limit did it"


def test_a_message_without_an_end_is_cut_off(config: dict[str, Any]) -> None:
    """ZeroMQ itself would keep all of it, frame by frame, until the last one comes."""
    frame = b"\x03" + (60_000).to_bytes(8, "big") + bytes(60_000)  # one that says that more come
    with (
        serving(config) as server,
        gpupipe.connect(server.address, device="cpu", ids=True) as loader,
    ):
        iterator = iter(loader)
        next(iterator)
        sent = 0
        with _raw(server.address) as raw, pytest.raises((ConnectionError, TimeoutError)):
            while sent < 10**10:
                raw.sendall(frame)
                sent += len(frame)
        assert server.stats()["cut_connections"] == 1
        assert len(list(iterator)) == len(loader) - 1, "others are unharmed"


_EMPTY_FRAME = b"\x01\x00"
"""Two bytes that say that more frames come. ZeroMQ keeps 64 bytes for each."""


def test_an_endless_message_of_a_slow_peer_is_cut_off(config: dict[str, Any]) -> None:
    """A megabyte is less than a connection may send, and 32 megabytes of memory."""
    with serving(config) as server, _raw(server.address) as raw:
        raw.recv(1000)
        raw.sendall(_EMPTY_FRAME * 500_000)
        assert _is_cut(raw)
        assert server.stats()["cut_connections"] == 1


def test_endless_messages_of_many_peers_are_cut_off(config: dict[str, Any]) -> None:
    """Also if each of them is short enough. Most of the peers may go on."""
    with serving(config, max_clients=1) as server, ExitStack() as stack:
        for _ in range(8):
            raw = stack.enter_context(_raw(server.address))
            raw.sendall(_EMPTY_FRAME * 80_000)
        _wait_until(lambda: server.stats()["cut_connections"] == 2)


def test_a_message_of_many_frames_is_cut_off(config: dict[str, Any]) -> None:
    with serving(config) as server, _raw(server.address) as raw:
        raw.recv(1000)
        raw.sendall(_EMPTY_FRAME * 16 + b"\x00\x00")
        assert _is_cut(raw)
        assert server.stats()["malformed"] == 1


@pytest.mark.parametrize("with_keys", [False, True], ids=["no keys", "keys"])
def test_connections_that_open_no_session_give_way(
    config: dict[str, Any],
    pairs: dict[str, tuple[Path, Path]],
    secured: dict[str, Any],
    with_keys: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each takes a file descriptor."""
    own = {"key": pairs["known"][1], "server_key": pairs["server"][0]} if with_keys else {}
    with (
        serving(config, **(secured if with_keys else {})) as server,
        ExitStack() as stack,
        gpupipe.connect(server.address, device="cpu", ids=True, **own) as loader,
    ):
        iterator = iter(loader)
        next(iterator)
        port = int(server.address.rpartition(":")[2])
        for _ in range(300):
            stack.enter_context(create_connection(("127.0.0.1", port), timeout=20))
        _wait_until(lambda: server.stats()["cut_connections"] == 300 - 256)
        assert len(list(iterator)) == len(loader) - 1
        assert fetch_stats(server.address, own.get("key"), own.get("server_key"))["clients"]
    assert not [r for r in caplog.records if "handshake" in r.getMessage()], "no riddle in the log"


def _is_cut(raw: socket) -> bool:
    """Wait for what comes next: the end of the connection, or anything else."""
    try:
        return raw.recv(1) == b""
    except ConnectionError:
        return True


def _wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_hostile_peers_harm_nobody(config: dict[str, Any]) -> None:
    """Noise, half messages, huge announcements, connects and disconnects, one that never reads: the
    others get their epochs.
    """
    rng = random.Random(3)
    greeting = codec.encode(hello("f" * 32, hwm=1000, wants_shared_memory=True))
    with (
        serving(config, hwm=4, heartbeat_timeout=0.5, session_timeout=2.0) as server,
        zmq.Context() as context,
        ExitStack() as stack,
    ):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        greedy = stack.enter_context(_hostile(context, server.address))
        greedy.send(greeting)
        greedy.send(codec.encode(messages.StartIteration(1, 0, 0, -1)))
        while not (clients := server.stats()["clients"]) or clients[0]["leased"] < 4:
            time.sleep(0.01)
        loader = stack.enter_context(gpupipe.connect(server.address, device="cpu", ids=True))
        assert server.stats()["clients"][0]["leased"] <= 4, (
            "it gets what it has room for, and no more"
        )
        noisy = stack.enter_context(_hostile(context, server.address))
        for _ in range(1000):
            noisy.send_multipart(
                [rng.randbytes(rng.randint(0, 300)) for _ in range(rng.randint(1, 3))]
            )
            noisy.send(greeting[: rng.randint(0, len(greeting) - 1)])
        # first: of more than 256 connections without a session the server cuts the oldest
        _wait_until(lambda: server.stats()["malformed"] >= 2000)
        big = stack.enter_context(_hostile(context, server.address))
        big.send(bytes(1 << 20))
        raw = stack.enter_context(_hostile(context, server.address, zmq.STREAM))
        route = raw.recv()
        raw.recv()
        raw.send_multipart([route, b"\xff\x00\x00\x00\x00\x7f\xff\xff\xff\x7f" + bytes(200)])
        for n in range(1000):
            _hostile(context, server.address, zmq.DEALER if n % 2 else zmq.REQ).close()
        assert sorted(i for b in loader for i in b["id"].tolist()) == list(range(23)), (
            "also what the greedy one had, once it is lost"
        )
        assert len(server.stats()["clients"]) == 1
        assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < 200
