"""How the ranks come together: all of them, each once, in one world, or an error on every one that came.

Each signs in at a store that rank 0 keeps (or torchrun's agent): its number, its host, how many it believes there are.
Who finds its number taken, or another world, writes the reason down, so that all the others stop waiting as well.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import MutableMapping
from dataclasses import dataclass
from datetime import timedelta
from threading import Thread
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from cabrank.cluster.context import JobContext
from cabrank.cluster.network import reach
from cabrank.errors import ConfigError, RendezvousError
from cabrank.sync.peers import NOBODY, VERDICT, Peers, alone, watch

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

POLL = 0.05  # seconds
LINGER = 2.0  # seconds that rank 0 keeps its store for the others to read why it leaves
NCCL_PATIENCE = 3  # times the peer timeout: NCCL's own watchdog kills the process, ours names the peer first


@dataclass(frozen=True, slots=True)
class World:
    """The ranks, twice: for buckets of gradients, and for the agreement before each step, in the CPU's memory. Two
    groups, so that neither meets the other's messages."""

    gradients: Peers
    agreement: Peers
    watching: Thread | None = None
    """Waits for the news that a rank is lost; None in a world of one."""


def join(
    context: JobContext,
    *,
    rendezvous_timeout: float = 600.0,
    peer_timeout: float = 60.0,
    device: torch.device | None = None,
    environment: MutableMapping[str, str] = os.environ,
) -> World:
    """Waits, `rendezvous_timeout` seconds in all, until the whole world of `context` is there, and opens its groups:
    over NCCL for a CUDA `device`, otherwise over gloo. From then on no wait takes longer than `peer_timeout` seconds.

    `RendezvousError` where the main node is not found, its port is taken, or ranks are missing, which it names;
    `ConfigError`, on all ranks, where two have one number or believe in worlds of different size."""
    if context.world == 1:
        return World(alone(), alone())
    deadline = time.monotonic() + rendezvous_timeout
    context = reach(context, rendezvous_timeout, environment)
    signed = PrefixStore(_name(context), _open_store(context, deadline))
    hosts = _sign_in(context, signed, deadline)
    patience = timedelta(seconds=peer_timeout)
    try:
        dist.init_process_group(
            "gloo", store=PrefixStore("groups", signed), rank=context.rank, world_size=context.world, timeout=patience
        )
        agreement = dist.new_group(backend="gloo", timeout=patience)
        if device is not None and device.type == "cuda":
            torch.cuda.set_device(device)
            gradients = dist.new_group(backend="nccl", timeout=patience * NCCL_PATIENCE)
        else:
            gradients = dist.new_group(backend="gloo", timeout=patience)
    except RuntimeError as error:
        raise RendezvousError(
            f"rank {context.rank} on {socket.gethostname()} could not connect to the other ranks ({error}): all "
            f"{context.world} had signed in, so look for a firewall between them, or a wrong GLOO_SOCKET_IFNAME "
            f"({environment.get('GLOO_SOCKET_IFNAME', 'not set')})"
        ) from error
    questions, news = (_open_store(context, deadline, keeper=False) for _ in range(2))
    store_rank = None if context.agent_store else 0
    verdict: list[int] = []

    def peers(group: ProcessGroup | None) -> Peers:
        return Peers(
            group,
            context.rank,
            context.world,
            hosts,
            peer_timeout,
            PrefixStore(_name(context), questions),
            store_rank,
            verdict=verdict,
        )

    return World(peers(gradients), peers(agreement), watch(PrefixStore(_name(context), news), verdict))


def leave(world: World) -> None:
    """Closes the groups, after the last step. After an error it is not called: the others may be waiting still."""
    peers = world.agreement
    if peers.store is None or world.watching is None:
        return
    with peers.guard("the end"):
        dist.barrier(peers.group)
        peers.store.compare_set(VERDICT, "", str(NOBODY))  # ends the watching
        world.watching.join(peers.timeout)
        dist.barrier(peers.group)  # before the store goes
    dist.destroy_process_group()


def _name(context: JobContext) -> str:
    return f"cabrank/{context.attempt}"


def _open_store(context: JobContext, deadline: float, *, keeper: bool = True) -> TCPStore:
    main = keeper and context.rank == 0 and not context.agent_store
    left = timedelta(seconds=max(deadline - time.monotonic(), 1.0))
    try:
        return TCPStore(context.main_address, context.main_port, is_master=main, timeout=left, wait_for_workers=False)
    except RuntimeError as error:
        if main and "EADDRINUSE" in str(error):
            raise RendezvousError(
                f"port {context.main_port} is in use on {socket.gethostname()}, the main node: end what listens there "
                "(another run, or a second rank 0), or choose another port"
            ) from error
        raise RendezvousError(
            f"rank {context.rank} finds no store at {context.main_address}:{context.main_port} ({error}): see rank 0's "
            "log, or wait longer with --rendezvous-timeout"
        ) from error


def _sign_in(context: JobContext, store: PrefixStore, deadline: float) -> tuple[str, ...]:
    """The hosts of all ranks, once all have signed in."""
    rank, world, host = context.rank, context.world, socket.gethostname()
    keeps_store = rank == 0 and not context.agent_store
    try:
        believed = int(store.compare_set("world", "", str(world)))
        if believed != world or store.add(f"rank/{rank}", 1) > 1:
            reason = (
                f"rank {rank} on {host} was told of {world} ranks, and another one of {believed}"
                if believed != world
                else f"two processes were told to be rank {rank}, one of them on {host}"
            )
            store.set("refused", f"{reason}: give every process the same number of ranks, and a rank of its own")
        else:
            store.set(f"host/{rank}", host)
            store.add("arrived", 1)
        return _wait_for_all(world, store, deadline)
    except (ConfigError, RendezvousError):
        if keeps_store:
            time.sleep(LINGER)
        raise
    except RuntimeError as error:
        raise RendezvousError(
            f"the store at {context.main_address}:{context.main_port} went away while rank {rank} on {host} waited for "
            f"the others ({error}): rank 0's log says why it left"
        ) from error


def _wait_for_all(world: int, store: PrefixStore, deadline: float) -> tuple[str, ...]:
    while True:
        if store.check(["refused"]):
            raise ConfigError(store.get("refused").decode())
        if store.add("arrived", 0) >= world:
            return tuple(store.get(f"host/{rank}").decode() for rank in range(world))
        if time.monotonic() > deadline:
            here = [rank for rank in range(world) if store.check([f"host/{rank}"])]
            hosts = sorted({store.get(f"host/{rank}").decode() for rank in here})
            missing = ", ".join(str(rank) for rank in range(world) if rank not in here)
            raise RendezvousError(
                f"of {world} ranks these did not sign in in time: {missing}; those on {', '.join(hosts)} did. See "
                "their logs, or wait longer with --rendezvous-timeout"
            )
        time.sleep(POLL)
