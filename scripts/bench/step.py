"""Seconds an iteration of the training loop against a bare torch loop that does the same arithmetic on resident rows.

    python scripts/bench/step.py [ROWS] [FEATURES]

The two alternate, round by round, so that a busy machine slows both; the figures are medians. Wanted: a ratio ≤ 1.10.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from cabrank.train.loop import train
from cabrank.train.model import LinearRegression

RATE, CLIP, STEPS, ROUNDS = 0.03, 0.5, 5, 9


def bare(batch: torch.Tensor, model: torch.nn.Linear, optimizer: torch.optim.Optimizer) -> float:
    """Features and label cut apart beforehand, into contiguous memory of their own: the best case."""
    features, label = batch[:, 1:].contiguous(), batch[:, 0].contiguous()
    start = time.perf_counter()
    for _ in range(STEPS):
        loss = functional.mse_loss(model(features).squeeze(1), label)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        loss.item()
    return (time.perf_counter() - start) / STEPS


def ours(batch: torch.Tensor, model: LinearRegression, optimizer: torch.optim.Optimizer) -> float:
    """The whole loop: feed, step, stopwatch, report."""
    start = time.perf_counter()
    train(model, [batch], optimizer, iterations=STEPS, clip_norm=CLIP)
    return (time.perf_counter() - start) / STEPS


def main() -> None:
    rows, features = (int(text) for text in (sys.argv[1:] + ["1048576", "8"][len(sys.argv) - 1 :]))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch = torch.randn(rows, features + 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)
    model = LinearRegression(features).to(device)
    plain = torch.nn.Linear(features, 1, dtype=torch.float64, device=device)
    jobs: dict[str, Callable[[], float]] = {
        "bare torch": lambda: bare(batch, plain, torch.optim.SGD(plain.parameters(), lr=RATE)),
        "cabrank": lambda: ours(batch, model, torch.optim.SGD(model.parameters(), lr=RATE)),
    }
    timed: dict[str, list[float]] = {name: [] for name in jobs}
    for _, (name, job) in itertools.product(range(ROUNDS + 1), jobs.items()):
        timed[name].append(job())
    medians = {name: statistics.median(seconds[1:]) for name, seconds in timed.items()}  # the first round warms up
    print(f"{rows:,} rows × {features} features, float64, {device}, {torch.get_num_threads()} threads")
    for name, seconds in medians.items():
        print(f"  {name:<11} {1000 * seconds:9.3f} ms an iteration")
    print(f"  ratio       {medians['cabrank'] / medians['bare torch']:9.3f}")


if __name__ == "__main__":
    main()
