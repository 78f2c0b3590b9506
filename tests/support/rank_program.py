"""A rank from its start to its end: it joins a world, and sums until somebody is lost, or for some steps."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch
from processes import fork_server
from torch import nn

from cabrank.cluster.context import JobContext
from cabrank.errors import CabrankError
from cabrank.sync.agreement import Agreement, Word
from cabrank.sync.hook import hook
from cabrank.sync.rendezvous import World, join, leave
from cabrank.sync.strategies import open_strategy

_NETWORK = 0x40000000  # Linux's CLONE_NEWNET
Work = Callable[[World, Callable[[Any], None]], object]


@dataclass(frozen=True)
class Place:
    """Where a rank stands."""

    rank: int
    world: int
    port: int
    address: str = "127.0.0.1"
    peer_timeout: float = 20.0
    rendezvous_timeout: float = 20.0
    network: str | None = None
    """Path of the network namespace to live in."""


class Rank:
    """One rank as a process; it tells things over a pipe, an error's message last, and exits with the error's code."""

    def __init__(self, place: Place, work: Work) -> None:
        self._pipe, theirs = fork_server().Pipe()
        self.process: ForkServerProcess = fork_server().Process(target=_live, args=(theirs, place, work))
        self.process.start()
        theirs.close()

    def told(self, seconds: float = 60.0) -> Any:
        """The next thing that it tells."""
        if not self._pipe.poll(seconds):
            raise TimeoutError("the rank is silent")
        return self._pipe.recv()

    def end(self, seconds: float = 60.0) -> tuple[int | None, Any]:
        """Its exit code, and the last thing it told."""
        last = None
        try:
            while True:
                last = self.told(seconds)
        except EOFError:
            self.process.join(seconds)
        return self.process.exitcode, last

    def kill(self) -> None:
        """Ends it, whatever it is doing."""
        self.process.kill()
        self.process.join()
        self._pipe.close()


def _live(pipe: Connection, place: Place, work: Work) -> None:
    if place.network is not None:
        with Path(place.network).open() as network:
            if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), _NETWORK):
                raise OSError(ctypes.get_errno(), place.network)
    torch.set_num_threads(1)
    context = JobContext(
        rank=place.rank,
        world=place.world,
        node=place.rank,
        nodes=tuple(str(rank) for rank in range(place.world)),
        main_address=place.address,
        main_port=place.port,
    )
    code = 0
    try:
        world = join(context, rendezvous_timeout=place.rendezvous_timeout, peer_timeout=place.peer_timeout)
        work(world, pipe.send)
    except CabrankError as error:
        code = error.exit_code
        pipe.send(str(error))
    pipe.close()
    os._exit(code)


def sum_for_ever(world: World, tell: Callable[[Any], None]) -> None:
    """Agrees and sums around the ring; tells when it is past its twentieth step."""
    agreement, strategy = Agreement(world.agreement), open_strategy("ring", world.gradients)
    bucket = torch.ones(1000)
    for step in range(10**9):
        strategy.peers.step = step
        agreement.reach(Word(rows=1, has_data=True, stop=False, finite=True, step=step, plan=0))
        strategy.all_reduce(bucket)
        if step == 20:
            tell("training")


def train_for_ever(world: World, tell: Callable[[Any], None]) -> None:
    """As a loop does it: agree, forward, backward with buckets through DDP's hook, check, step."""
    strategy, agreement = open_strategy("ring", world.gradients), Agreement(world.agreement)
    model = nn.Sequential(nn.Linear(8, 100), nn.Tanh(), nn.Linear(100, 100), nn.Tanh(), nn.Linear(100, 1))
    with strategy.peers.guard("DDP's start"):
        ddp = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)
    ddp.register_comm_hook(strategy, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for step in range(10**9):
        strategy.peers.step = step
        agreed = agreement.reach(Word(rows=4, has_data=True, stop=False, finite=True, step=step, plan=0))
        optimizer.zero_grad()
        with strategy.peers.guard("DDP's own messages"):
            (ddp(torch.randn(4, 8)).square().mean() * (4 / agreed.rows)).backward()
        strategy.check()
        optimizer.step()
        if step == 20:
            tell("training")


@dataclass(frozen=True)
class SumSome:
    """Sums `elements` float32 some times with the strategy called `name`; tells bytes sent and received, and waits for
    the others."""

    name: str
    elements: int
    times: int

    def __call__(self, world: World, tell: Callable[[Any], None]) -> None:
        strategy = open_strategy(self.name, world.gradients)
        bucket = torch.ones(self.elements)
        for index in range(self.times):
            strategy.all_reduce(bucket, index)
        strategy.close()
        total = strategy.account.total
        tell((total.sent, total.received))
        leave(world)
