"""The way to the main node: its name, its port, and the interface that leads there.

A name may not resolve for minutes after a start, and a port not answer until the main node is up: both are tried
again, with growing pauses, until a deadline. `|| localhost` is what this room never does: it would make every node a
world of one that trains on its own and says nothing.
"""

from __future__ import annotations

import ipaddress
import os
import random
import socket
import struct
import time
from collections.abc import Callable, MutableMapping
from dataclasses import replace
from typing import TypeVar

from cabrank.cluster.context import JobContext
from cabrank.errors import RendezvousError

T = TypeVar("T")
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds
PROBE_SECONDS = 5.0  # of one attempt to connect
SOMEWHERE = "192.0.2.1"  # an address for documentation: routed like any other, and nothing is sent there
_GET_ADDRESS = 0x8915  # Linux's SIOCGIFADDR


def reach(context: JobContext, timeout: float, environment: MutableMapping[str, str] = os.environ) -> JobContext:
    """Finds the way to the main node within `timeout` seconds and returns `context` with its `interface`, which gloo
    and NCCL are told through `environment`, unless somebody already told them. Rank 0 only looks its own name up;
    every other rank goes on until the main node's port answers. `RendezvousError` names what did not, and for how long.
    """
    if context.world == 1:
        return context
    deadline = time.monotonic() + timeout
    address = resolve(context.main_address, context.main_port, deadline)
    if context.main_assumed and len(context.nodes) > 1 and ipaddress.ip_address(address).is_loopback:
        raise RendezvousError(
            f"this is the main node of {len(context.nodes)}, was not told its address, and finds none but {address}, "
            "which the other nodes cannot reach: connect the container to a network"
        )
    if context.rank > 0 or context.agent_store:
        wait_for_port(context.main_address, context.main_port, deadline)
    known = {name for _, name in socket.if_nameindex()}
    interface = context.interface if context.interface in known else interface_towards(address)
    if interface:
        environment.setdefault("GLOO_SOCKET_IFNAME", interface)
        environment.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")  # =: this one, not all whose names begin so
    return replace(context, interface=interface)


def resolve(host: str, port: int, deadline: float) -> str:
    """The IPv4 or IPv6 address of `host`, asked for until `deadline`, a time of `time.monotonic`."""

    def look_up() -> str:
        return str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])

    remedy = "check the name, and that the nodes share a network with a DNS"
    return _keep_trying(look_up, deadline, f"the main node's name {host!r} does not resolve", remedy)


def wait_for_port(host: str, port: int, deadline: float) -> None:
    """Returns once `host`, which is looked up anew each time since addresses change, accepts connections on `port`."""

    def connect() -> None:
        socket.create_connection((host, port), timeout=PROBE_SECONDS).close()

    remedy = "see whether the main node started, and that its security group lets the nodes reach each other"
    _keep_trying(connect, deadline, f"the main node {host!r} does not answer on port {port}", remedy)


def _keep_trying(attempt: Callable[[], T], deadline: float, problem: str, remedy: str) -> T:
    began, pause, tries = time.monotonic(), FIRST_PAUSE, 0
    while True:
        tries += 1
        try:
            return attempt()
        except OSError as error:
            left = deadline - time.monotonic()
            if left <= 0:
                raise RendezvousError(
                    f"{problem}, after {tries} tries in {time.monotonic() - began:.0f} s ({error}): {remedy}, or wait "
                    "longer with --rendezvous-timeout"
                ) from error
        time.sleep(min(pause * random.uniform(0.5, 1.0), max(left, 0)))  # noqa: S311  not a secret
        pause = min(pause * 2, LONGEST_PAUSE)


def own_address(towards: str = SOMEWHERE) -> str:
    """This node's own address on the way to `towards`; 127.0.0.1 where there is no way."""
    family = socket.AF_INET6 if ":" in towards else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((towards, 9))  # chooses a route; a datagram socket sends nothing for it
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def interface_towards(address: str) -> str | None:
    """The interface that holds this node's address on the way to `address`: for the main node itself its own network,
    not loopback. None where the system does not say (IPv6, macOS)."""
    own = own_address(address)
    return next((name for _, name in socket.if_nameindex() if _address_of(name) == own), None)


def _address_of(interface: str) -> str | None:
    try:
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            request = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _GET_ADDRESS, request)[20:24])
    except (OSError, ImportError):  # it has no IPv4 address, or this is no Linux
        return None
