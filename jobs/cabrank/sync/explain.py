"""The ring on paper: the same cut and the same index rule as `ring.py`, on lists, with a picture after every round.

`cabrank ring --explain` prints it on the gradients of a linear regression whose answer is known, 1 2 3 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from cabrank.errors import ConfigError
from cabrank.sync.ring import TEXTBOOK, Round, rounds

Gradients = list[list[float]]
"""One list of numbers a node, all of one length."""


class Picture(NamedTuple):
    """What the nodes hold after a round; `moves[i]` is what node i did in it, or None before the first."""

    title: str
    moves: Sequence[Round] | None
    gradients: Gradients


def ring_pictures(gradients: Gradients) -> Iterator[Picture]:
    """The start, and the state after each of the 2·(N - 1) rounds."""
    world, elements = len(gradients), len(gradients[0])
    segments = [slice(*pair) for pair in pairwise(TEXTBOOK.cut(elements, 8, world))]
    plans = [rounds(rank, world, TEXTBOOK.direction) for rank in range(world)]
    held = [list(gradient) for gradient in gradients]
    yield Picture("Each node's own gradient", None, held)
    for t, moves in enumerate(zip(*plans, strict=True)):
        sent = [held[rank][segments[move.send]] for rank, move in enumerate(moves)]
        held = [list(gradient) for gradient in held]
        for rank, move in enumerate(moves):
            arrived, place = sent[(rank - TEXTBOOK.direction) % world], segments[move.receive]
            added = [own + other for own, other in zip(held[rank][place], arrived, strict=True)]
            held[rank][place] = added if move.add else arrived
        phase = "Reduce-scatter" if moves[0].add else "All-gather"
        yield Picture(f"{phase}, round {t % (world - 1)}", moves, held)


def chain_reduce(values: Sequence[float], first: int) -> list[float]:
    """The plain reduce: `first` sends to the node after it, which adds and passes on, in N - 1 rounds; what every node
    holds at the end. Only the last one, `first` - 1, has the sum."""
    held, world = list(values), len(values)
    for t in range(world - 1):
        sender = (first + t) % world
        held[(sender + 1) % world] += held[sender]
    return held


def sample_gradients(nodes: int) -> Gradients:
    """Gradients [nodes][4] of 1,000 made-up rows cut into `nodes` shards: label = features · (1, 2, 3, 4), squared
    error, weights drawn from a standard normal. With 4 nodes, the numbers drawn above `ring.py`'s code."""
    if not 1 <= nodes <= 16:
        raise ConfigError(f"--nodes is {nodes}: the pictures are drawn for 1 to 16")
    features, label = sample_rows()
    torch.manual_seed(42)
    weights = torch.randn(4, requires_grad=True)
    gradients = []
    bounds = TEXTBOOK.cut(len(label), 4, nodes)
    for begin, end in pairwise(bounds):
        residuals = features[begin:end] @ weights - label[begin:end]
        (gradient,) = torch.autograd.grad(residuals.square().mean() * ((end - begin) / len(label)), weights)
        gradients.append(gradient.tolist())
    return gradients


def explain(nodes: int) -> str:
    """The whole explanation as text, one picture a round, what changed in it marked with a star."""
    pictures = list(ring_pictures(sample_gradients(nodes)))
    parts = ["\n".join(_drawn(picture)) for picture in pictures]
    parts.append(_cost(nodes, len(pictures[0].gradients[0])))
    start = [5.0, 3.0, 2.0, 1.0]
    held = "  ".join(f"node {node}: {value:g}" for node, value in enumerate(chain_reduce(start, first=1)))
    parts.append(
        "The plain reduce that the ring is made of: gradients 5, 3, 2, 1 on four nodes; node 1 sends to 2, which adds\n"
        f"and sends to 3, which adds and sends to 0.\n  {held}\n"
        "After three rounds node 0 has the sum, and three of four links stood idle in each of them. The ring runs one\n"
        "such chain a segment, each from another node, so that every link works in every round."
    )
    return "\n\n".join(parts) + "\n"


def _drawn(picture: Picture) -> Iterator[str]:
    world, elements = len(picture.gradients), len(picture.gradients[0])
    segments = [slice(*pair) for pair in pairwise(TEXTBOOK.cut(elements, 8, world))]
    yield picture.title
    for rank, gradient in enumerate(picture.gradients):
        move = picture.moves[rank] if picture.moves else None
        changed = set(range(elements)[segments[move.receive]]) if move else set()
        numbers = "".join(f"{value:12.4f}{'*' if at in changed else ' '}" for at, value in enumerate(gradient))
        yield f"  node {rank:<2} {numbers}{_told(rank, world, move)}".rstrip()


def _told(rank: int, world: int, move: Round | None) -> str:
    if move is None:
        return ""
    sender = (rank - TEXTBOOK.direction) % world
    verb = "adds" if move.add else "takes"
    return f"  sent segment {move.send}, {verb} segment {move.receive} from node {sender}"


def _cost(nodes: int, elements: int) -> str:
    share = 2 * (nodes - 1) / nodes
    return (
        f"Cost: {2 * (nodes - 1)} rounds; of a gradient of S bytes (here {elements} numbers) each node sends and\n"
        f"receives 2·S·({nodes} - 1)/{nodes} = {share:.4g}·S. A parameter server would send {nodes - 1}·S alone."
    )


def sample_rows() -> tuple[Tensor, Tensor]:
    """Features [1000, 4], normal around (0, 1, 2, 3), and label [1000], float32, after seeding 42."""
    torch.manual_seed(42)
    normal = torch.distributions.MultivariateNormal(torch.arange(4.0), torch.eye(4))
    features = normal.sample((1000,))
    return features, features @ torch.arange(1.0, 5.0)
