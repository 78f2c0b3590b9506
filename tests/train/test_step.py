"""The model and one step of it, against numpy's arithmetic written out."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load

from cabrank.train.model import LinearRegression, to_safetensors
from cabrank.train.step import take_step

Table = npt.NDArray[np.float64]


def numpy_step(
    table: Table, weights: Table, bias: float, rate: float, clip: float
) -> tuple[float, float, Table, float]:
    """MSE, gradient norm, new weights and new bias of one clipped gradient step."""
    residuals = table[:, 1:] @ weights + bias - table[:, 0]
    gradient = np.append(2 * table[:, 1:].T @ residuals, 2 * residuals.sum()) / len(table)
    norm = float(np.linalg.norm(gradient))
    gradient = gradient * min(1.0, clip / norm)
    return float(np.mean(residuals**2)), norm, weights - rate * gradient[:-1], bias - rate * gradient[-1]


@pytest.mark.parametrize("clip", [0.5, 1e12])
@pytest.mark.parametrize("rows", [1, 7, 20_000])
def test_a_step_is_the_textbooks(rows: int, clip: float, trips: Table) -> None:
    table = trips[:rows]
    model = LinearRegression(8, seed=3)
    bias, weights = model.coefficients()
    mse, norm, new_weights, new_bias = numpy_step(table, np.array(weights), bias, 1e-7, clip)
    outcome = take_step(model, torch.tensor(table), torch.optim.SGD(model.parameters(), lr=1e-7), clip)
    assert outcome.mse.item() == pytest.approx(mse, rel=1e-12)
    assert outcome.gradient_norm.item() == pytest.approx(norm, rel=1e-12)
    assert model.coefficients()[0] == pytest.approx(new_bias, rel=1e-9)
    assert model.coefficients()[1] == pytest.approx(new_weights, rel=1e-9)


def test_sync_comes_after_the_gradient_and_before_the_clip() -> None:
    model = LinearRegression(2)

    def as_if_another_rank_had_sent(synced: object) -> None:
        assert synced is model
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.fill_(2.0)

    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = model.coefficients()[0]
    outcome = take_step(model, torch.ones(4, 3, dtype=torch.float64), optimizer, None, as_if_another_rank_had_sent)
    assert outcome.gradient_norm.item() == pytest.approx(np.sqrt(12))
    assert model.coefficients()[0] == pytest.approx(before - 2)


def test_the_start_is_kaiming_uniform_seeded_and_touches_no_global_state() -> None:
    state = torch.get_rng_state()
    model = LinearRegression(600, seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    weights = model.weight.detach()
    bound = np.sqrt(6 / 600)
    assert weights.abs().max().item() <= bound
    assert weights.std().item() == pytest.approx(bound / np.sqrt(3), rel=0.1)  # of a uniform distribution
    assert torch.equal(weights, LinearRegression(600, seed=5).weight)
    assert not torch.equal(weights, LinearRegression(600, seed=6).weight)


def test_a_plain_torch_layer_loads_the_saved_weights() -> None:
    model = LinearRegression(3, dtype=torch.float32)
    data = to_safetensors(model, "fare", ["a", "b", "c"])
    layer = torch.nn.Linear(3, 1)
    layer.load_state_dict(load(data))
    x = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(layer(x), model(x))


def test_saved_weights_name_their_columns(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(to_safetensors(LinearRegression(2), "fare", ["a", "b"]))
    with safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["cabrank"]) == {"label": "fare", "features": ["a", "b"]}


def test_without_clipping_raw_columns_explode_by_a_factor_of_6e10(trips: Table) -> None:
    """REFERENCE R7. The factor is (rate · λ)², λ the largest eigenvalue of 2·AᵀA/N, which 2017² rules."""
    batch = torch.tensor(trips)
    model = LinearRegression(8, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
    losses = [take_step(model, batch, optimizer).mse.item() for _ in range(8)]
    growth = [after / before for before, after in pairwise(losses)]
    assert growth[2:] == pytest.approx([6e10] * 5, rel=0.05)


def test_with_clipping_the_loss_is_bounded_and_swings_between_two_values(trips: Table) -> None:
    """REFERENCE R7, published: about 36 and 860, or 215 and 420, depending on where the swing was entered."""
    batch = torch.tensor(trips)
    model = LinearRegression(8, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
    losses = [take_step(model, batch, optimizer, 0.5).mse.item() for _ in range(400)]
    assert losses[-1] == pytest.approx(losses[-3], rel=0.02)
    assert losses[-2] == pytest.approx(losses[-4], rel=0.02)
    assert abs(losses[-1] - losses[-2]) > 10
    assert max(losses[-50:]) < 1000
