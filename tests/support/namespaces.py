"""Hosts of their own on one machine: Linux network namespaces, joined by a bridge. Needs root and iproute2."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass


def missing() -> str:
    """Why there can be none here; empty where there can."""
    if shutil.which("ip") is None:
        return "no iproute2"
    name = f"cabrank-{os.getpid()}-try"
    try:
        _ip("netns", "add", name)
        _ip("netns", "del", name)
    except (OSError, subprocess.CalledProcessError):
        return "not allowed to make network namespaces"
    return ""


@dataclass(frozen=True)
class Host:
    """One namespace, with `eth0` at `address`."""

    name: str
    address: str

    @property
    def path(self) -> str:
        """For `setns`."""
        return f"/run/netns/{self.name}"

    def bytes_sent(self) -> int:
        """What the kernel says went out of eth0, headers included."""
        shown = json.loads(_ip("-n", self.name, "-s", "-j", "link", "show", "dev", "eth0"))
        return int(shown[0]["stats64"]["tx"]["bytes"])

    def cut(self) -> None:
        """Takes the link away."""
        _ip("-n", self.name, "link", "set", "eth0", "down")

    def limit(self, rate: str) -> None:
        """What eth0 may send, as tc writes rates: 200mbit."""
        tbf = ["tbf", "rate", rate, "burst", "128kb", "latency", "50ms"]
        command = ["tc", "-n", self.name, "qdisc", "replace", "dev", "eth0", "root", *tbf]
        subprocess.run(command, check=True, capture_output=True)


@contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """`count` hosts on one network of their own."""
    stem = f"cabrank-{os.getpid()}"
    bridge = f"{stem}-bridge"
    made = [Host(f"{stem}-{i}", f"10.77.0.{i + 1}") for i in range(count)]
    try:
        _ip("netns", "add", bridge)
        _ip("-n", bridge, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", bridge, "link", "set", "bridge0", "up")
        for i, host in enumerate(made):
            _ip("netns", "add", host.name)
            veth = ["type", "veth", "peer", "name", f"port{i}", "netns", bridge]
            _ip("-n", host.name, "link", "add", "eth0", *veth)
            _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", host.name, "link", "set", device, "up")
            _ip("-n", bridge, "link", "set", f"port{i}", "master", "bridge0", "up")
        yield made
    finally:
        for name in [*(host.name for host in made), bridge]:
            with suppress(subprocess.CalledProcessError):  # what was not made
                _ip("netns", "del", name)


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout
