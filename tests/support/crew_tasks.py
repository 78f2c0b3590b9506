"""What the crew's processes run: module-level functions, so that a spawned process can import them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cabrank.sync.accumulate import accumulate
from cabrank.sync.explain import sample_gradients, sample_rows
from cabrank.sync.hook import hook
from cabrank.sync.parameter_server import ParameterServer
from cabrank.sync.peers import Peers
from cabrank.sync.ring import TEXTBOOK, Ring
from cabrank.sync.strategies import open_strategy

PeersOf = dict[int, Peers]
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def numbers(length: int, dtype: torch.dtype, seed: int) -> Tensor:
    """[length] values whose sums round."""
    draw = torch.Generator().manual_seed(seed)
    if not dtype.is_floating_point:
        return torch.randint(-(2**62), 2**62, (length,), dtype=dtype, generator=draw)
    return torch.randn(length, dtype=torch.float64, generator=draw).to(dtype)


def compare_with_gloo(peers_of: PeersOf, n: int, sizes: list[int]) -> list[str]:
    """What differs from `torch.distributed.all_reduce` in a bit: the ring in small pieces, and round by round."""
    peers = peers_of[n]
    rings = {"pieces": Ring(peers, piece_bytes=2**18), "rounds": Ring(peers, by_rounds=True)}
    differing = []
    for dtype in FLOATS:
        for size in sizes:
            own = numbers(size, dtype, 1000 * size + peers.rank)
            expected = own.clone()
            dist.all_reduce(expected, group=peers.group)
            for name, ring in rings.items():
                found = ring.all_reduce(own.clone(), size)
                if not torch.equal(found.view(torch.uint8), expected.view(torch.uint8)):
                    differing.append(f"{name}, {dtype}, {size} elements, rank {peers.rank} of {n}")
    for ring in rings.values():
        ring.close()
    return differing


def sum_integers(peers_of: PeersOf, n: int, length: int, piece_bytes: int | None, textbook: bool) -> tuple[int, Any]:
    """Bytes sent, and the sum as a list."""
    options: dict[str, Any] = {"circle": TEXTBOOK} if textbook else {}
    ring = Ring(peers_of[n], piece_bytes=piece_bytes, by_rounds=piece_bytes is None, **options)
    summed = ring.all_reduce(numbers(length, torch.int64, 10 * length + peers_of[n].rank))
    ring.close()
    return ring.account.total.sent, summed.tolist()


def reduce_reference(peers_of: PeersOf, rounds: int, piece_bytes: int | None) -> list[float]:
    """R5: this node's gradient after that many rounds of the textbook's ring."""
    peers = peers_of[4]
    ring = Ring(peers, circle=TEXTBOOK, piece_bytes=piece_bytes, by_rounds=piece_bytes is None)
    ring._rounds = ring._rounds[:rounds]
    held = ring.all_reduce(torch.tensor(sample_gradients(4)[peers.rank]))
    ring.close()
    return [round(value, 4) for value in held.tolist()]


def sum_on_the_wire(peers_of: PeersOf, name: str, wire_dtype: str | None, dtype: torch.dtype) -> dict[str, Any]:
    """The sum of 1,000 values and what it cost, with the wire's dtype given."""
    peers = peers_of[3]
    strategy = open_strategy(name, peers, wire_dtype)
    summed = strategy.all_reduce(numbers(1000, dtype, peers.rank))
    strategy.close()
    total = strategy.account.total
    return {"sum": summed.tolist(), "sent": total.sent, "received": total.received, "dtype": summed.dtype}


def serve_buckets(peers_of: PeersOf, sharded: bool) -> tuple[bytes, list[int]]:
    """The sums of five buckets by a parameter server, and the bytes sent by bucket."""
    peers = peers_of[3]
    strategy = ParameterServer(peers, sharded=sharded)
    sums = [strategy.all_reduce(numbers(300_000, torch.float32, 7 * i + peers.rank), i) for i in range(5)]
    strategy.close()
    return torch.cat(sums).numpy().tobytes(), [strategy.account.bucket(i).sent for i in range(5)]


def train(peers_of: PeersOf, n: int, name: str, dtype: torch.dtype, steps: int) -> tuple[bytes, bool]:
    """Trains a two-layer network under DDP on unequal shards, two buckets or more; its weights, and whether DDP's
    buckets went through the strategy."""
    peers = peers_of[n]
    strategy = open_strategy(name, peers)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 100), nn.Tanh(), nn.Linear(100, 100), nn.Tanh(), nn.Linear(100, 1)).to(dtype)
    rows = torch.randn(60, 5, dtype=dtype, generator=torch.Generator().manual_seed(5))
    bounds = [0, *{1: [], 2: [13], 4: [7, 20, 41]}[n], 60]
    own = rows[bounds[peers.rank] : bounds[peers.rank + 1]]
    shards = [own[:3], own[3:]]
    ddp = nn.parallel.DistributedDataParallel(model, process_group=peers.group, bucket_cap_mb=0.01)
    ddp.register_comm_hook(strategy, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        accumulate(lambda batch: (ddp(batch[:, 1:])[:, 0] - batch[:, 0]).square().mean(), shards, 60, ddp.no_sync)
        strategy.check()
        optimizer.step()
    strategy.close()
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    return flat.numpy().tobytes(), len(strategy.account.buckets) > 1


def regress(peers_of: PeersOf, epochs: int) -> list[float]:
    """R6: the reference regression on four nodes, each with its shard."""
    peers = peers_of[4]
    ring = Ring(peers)
    features, label = sample_rows()
    own = slice(250 * peers.rank, 250 * (peers.rank + 1))
    torch.manual_seed(42)
    weights = torch.randn(4, requires_grad=True)
    for _ in range(epochs):
        loss = (features[own] @ weights - label[own]).square().mean() * (250 / 1000)
        (gradient,) = torch.autograd.grad(loss, weights)
        ring.all_reduce(gradient)
        with torch.no_grad():
            weights -= 0.01 * gradient
    ring.close()
    return [round(value, 4) for value in weights.tolist()]
