"""R1 to R3: gradients that add up in place, over shards in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from cabrank.sync.accumulate import accumulate
from cabrank.sync.explain import sample_rows


def test_r1_five_backward_calls() -> None:
    x = torch.tensor(3.0, requires_grad=True)
    seen = []
    for _ in range(5):
        accumulate(lambda _: x.square(), [torch.ones(1)], rows=1)
        assert x.grad is not None
        seen.append(x.grad.item())
    assert seen == [6, 12, 18, 24, 30]


def test_r2_the_synthetic_rows() -> None:
    features, label = sample_rows()
    assert features.shape == (1000, 4)
    assert label.shape == (1000,)
    assert label[0].item() == pytest.approx(19.1816, abs=5e-5)


@pytest.mark.parametrize("bounds", [[0, 250, 500, 750, 1000], [0, 1, 999, 1000]])
def test_r3_regression_over_shards_of_any_size(bounds: list[int]) -> None:
    features, label = sample_rows()
    rows = torch.cat([label[:, None], features], dim=1)
    shards = [rows[a:b] for a, b in pairwise(bounds)]
    torch.manual_seed(42)
    weights = torch.randn(4, requires_grad=True)

    def loss(shard: Tensor) -> Tensor:
        return (shard[:, 1:] @ weights - shard[:, 0]).square().mean()

    optimizer = torch.optim.SGD([weights], lr=0.01)
    for _ in range(500):
        optimizer.zero_grad()
        total = accumulate(loss, shards, rows=1000)
        optimizer.step()
    assert [round(w, 4) for w in weights.tolist()] == [1.0, 2.0, 3.0, 4.0]
    assert total.item() == pytest.approx(0.0, abs=1e-6)


def test_no_sync_encloses_forward_and_backward_of_all_but_the_last() -> None:
    x = torch.tensor(1.0, requires_grad=True)
    told: list[str] = []

    @contextmanager
    def no_sync() -> Iterator[None]:
        told.append("quiet")
        yield
        told.append("loud")

    def loss(shard: Tensor) -> Tensor:
        told.append(f"loss of {len(shard)}")
        return x * shard.sum()

    total = accumulate(loss, [torch.ones(2), torch.ones(1), torch.ones(3)], 6, no_sync)
    assert told == ["quiet", "loss of 2", "loud", "quiet", "loss of 1", "loud", "loss of 3"]
    assert total.item() == pytest.approx((2 * 2 + 1 * 1 + 3 * 3) / 6)
