"""The way to the main node over real sockets: names and ports that come late, or never."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from cabrank.cluster.context import JobContext
from cabrank.cluster.network import interface_towards, own_address, reach, resolve, wait_for_port
from cabrank.errors import RendezvousError


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Bound on loopback, and refusing connections until it listens."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        yield server


@pytest.fixture
def port(silent: socket.socket) -> int:
    """A port that nobody listens on."""
    return int(silent.getsockname()[1])


def test_a_world_of_one_asks_nobody() -> None:
    variables: dict[str, str] = {}
    context = JobContext(main_address="nowhere.invalid")
    assert reach(context, 0.0, variables) is context
    assert not variables


def test_s13_a_name_that_comes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    look_up = socket.getaddrinfo
    failures = [OSError("Name or service not known"), OSError("Temporary failure in name resolution")]

    def late(host: str, *rest: object, **more: object) -> object:
        if failures:
            raise failures.pop()
        return look_up("127.0.0.1", *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", late)
    assert resolve("algo-1", 29500, time.monotonic() + 30) == "127.0.0.1"
    assert not failures


def test_a_name_that_never_resolves() -> None:
    context = JobContext(rank=1, world=2, nodes=("a", "b"), node=1, main_address="algo-1.invalid")
    began = time.monotonic()
    with pytest.raises(RendezvousError, match=r"name 'algo-1\.invalid' does not resolve, after \d+ tries") as caught:
        reach(context, 0.3, {})
    assert caught.value.exit_code == 4
    assert "--rendezvous-timeout" in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)
    assert time.monotonic() - began < 15


def test_a_port_that_comes_late(silent: socket.socket, port: int) -> None:
    opened = threading.Event()

    def listen() -> None:
        opened.set()
        silent.listen()

    opening = threading.Timer(0.25, listen)
    opening.start()
    wait_for_port("127.0.0.1", port, time.monotonic() + 30)
    assert opened.is_set()
    opening.join()


def test_a_port_that_never_answers(port: int) -> None:
    context = JobContext(rank=1, world=2, nodes=("a", "b"), node=1, main_address="127.0.0.1", main_port=port)
    with pytest.raises(RendezvousError, match=f"main node '127.0.0.1' does not answer on port {port}, after"):
        reach(context, 0.2, {})


@pytest.mark.skipif(sys.platform != "linux", reason="interfaces are looked up on Linux only")
def test_a_loopback_address_is_used_when_given_and_refused_when_assumed() -> None:
    given = JobContext(world=2, nodes=("a", "b"), main_address="127.0.0.1")
    variables: dict[str, str] = {}
    assert reach(given, 1.0, variables).interface == "lo"
    assert variables == {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
    assumed = JobContext(world=2, nodes=("a", "b"), main_address="127.0.0.1", main_assumed=True)
    with pytest.raises(RendezvousError, match="this is the main node of 2, was not told its address, and finds none"):
        reach(assumed, 1.0, {})


@pytest.mark.skipif(sys.platform != "linux", reason="interfaces are looked up on Linux only")
def test_what_the_user_or_the_platform_said_stands() -> None:
    variables = {"GLOO_SOCKET_IFNAME": "efa7"}
    named = JobContext(world=2, nodes=("a", "b"), main_address="127.0.0.1", interface="lo")
    reach(named, 1.0, variables)
    assert variables == {"GLOO_SOCKET_IFNAME": "efa7", "NCCL_SOCKET_IFNAME": "=lo"}
    absent = JobContext(world=2, nodes=("a", "b"), main_address="127.0.0.1", interface="ethwe")
    assert reach(absent, 1.0, {}).interface == "lo"


@pytest.mark.skipif(own_address() == "127.0.0.1" or sys.platform != "linux", reason="no network but loopback")
def test_the_main_nodes_interface_to_itself_is_its_networks() -> None:
    assert interface_towards(own_address()) not in (None, "lo")
