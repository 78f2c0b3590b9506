"""The ring beside gloo's all_reduce, and beside what it replaces: seconds a sum, interleaved, medians.

    python scripts/bench/allreduce.py [--ranks 2 4] [--bytes 65536 4194304 67108864] [--links loopback 1gbit 200mbit]

A link of a rate is a network namespace a rank, joined by a bridge, each limited by `tc tbf` (root and iproute2). The
textbook's ring sends whole segments, one round after the other; what it takes longer is what pieces in flight bring.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "jobs"), str(ROOT / "tests" / "support")]

import namespaces  # noqa: E402
from rank_program import Place, Rank  # noqa: E402

WAYS = ("gloo", "ring", "textbook", "parameter-server")
SECONDS_A_SIZE, MOST_ROUNDS, FEWEST_ROUNDS = 8.0, 41, 9


@dataclass(frozen=True)
class Times:
    """Sums `nbytes` in float32 in every way in turn; rank 0 tells the seconds of each round by way."""

    nbytes: int
    seconds: float

    def __call__(self, world: Any, tell: Callable[[Any], None]) -> None:
        import torch
        import torch.distributed as dist

        from cabrank.sync.parameter_server import ParameterServer
        from cabrank.sync.rendezvous import leave
        from cabrank.sync.ring import Ring

        peers = world.gradients
        strategies = [Ring(peers), Ring(peers, by_rounds=True), ParameterServer(peers)]
        sums: list[Callable[[Any], Any]] = [
            lambda bucket: dist.all_reduce(bucket, group=peers.group),
            *(strategy.all_reduce for strategy in strategies),
        ]
        bucket = torch.zeros(self.nbytes // 4)
        taken: dict[str, list[float]] = {way: [] for way in WAYS}
        rounds, began = MOST_ROUNDS, time.perf_counter()
        number = 0
        while number < rounds:
            for way, add in zip(WAYS, sums, strict=True):
                dist.barrier(world.agreement.group)
                start = time.perf_counter()
                add(bucket)
                taken[way].append(time.perf_counter() - start)
            number += 1
            if number == 2:  # the first warms up, the second tells how many there is time for: rank 0 says
                again = (time.perf_counter() - began) / 2
                chosen = torch.tensor(max(FEWEST_ROUNDS, min(MOST_ROUNDS, int(self.seconds / again))))
                dist.broadcast(chosen, 0, group=world.agreement.group)
                rounds = int(chosen)
        if peers.rank == 0:
            tell({way: seconds[1:] for way, seconds in taken.items()})
        for strategy in strategies:
            strategy.close()
        leave(world)


def measure(ranks: int, nbytes: int, link: str, seconds: float) -> dict[str, list[float]]:
    """Seconds by way, on processes and hosts of their own."""
    with socket.socket() as probe, ExitStack() as stack:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        options: list[dict[str, Any]] = [{} for _ in range(ranks)]
        if link != "loopback":
            hosts = stack.enter_context(namespaces.hosts(ranks))
            for host in hosts:
                host.limit(link)
            options = [{"address": hosts[0].address, "network": host.path} for host in hosts]
        work = Times(nbytes, seconds)
        running = [Rank(Place(rank, ranks, port, peer_timeout=120, **options[rank]), work) for rank in range(ranks)]
        try:
            taken: dict[str, list[float]] = running[0].told(600)
            for rank in running:
                rank.end()
        finally:
            for rank in running:
                rank.kill()
    return taken


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--bytes", type=int, nargs="+", default=[2**16, 2**22, 2**26])
    parser.add_argument("--links", nargs="+", default=["loopback", "1gbit", "200mbit"])
    parser.add_argument("--seconds", type=float, default=SECONDS_A_SIZE, help="about how long each line may take")
    args = parser.parse_args()
    print("link       N      bytes   gloo, ms   " + "".join(f"{way + ' ÷ gloo':>24}" for way in WAYS[1:]))
    for link in args.links:
        for ranks in args.ranks:
            for nbytes in args.bytes:
                taken = measure(ranks, nbytes, link, args.seconds)
                gloo = statistics.median(taken["gloo"])
                ratios = "".join(f"{statistics.median(taken[way]) / gloo:24.2f}" for way in WAYS[1:])
                print(
                    f"{link:9} {ranks:2} {nbytes:10} {gloo * 1000:10.2f}   {ratios}  ({len(taken['gloo'])} rounds)",
                    flush=True,
                )


if __name__ == "__main__":
    main()
