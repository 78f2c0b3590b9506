"""Linear regression: the job's model, and how its error is taken from a batch in one sweep."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class LinearRegression(nn.Linear):
    """Prediction = features · weights + bias. Its saved weights load into any `torch.nn.Linear(p, 1)`."""

    def __init__(self, features: int, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> None:
        """Weights [1, p] and bias [1] start Kaiming-uniform: U(±√(6/p)). Same seed, same start, on every device: the
        draw is the CPU's, from a generator of its own."""
        super().__init__(features, 1, dtype=dtype, device="meta")  # meta: nn.Linear's own random start is not drawn
        draw = torch.Generator().manual_seed(seed)
        start = nn.init.kaiming_uniform_(torch.empty(features + 1, features, dtype=dtype), generator=draw)
        self.weight = nn.Parameter(start[:1].clone())
        self.bias = nn.Parameter(start[1:2, 0].clone())

    def mean_squared_error(self, batch: Tensor) -> Tensor:
        """Of a batch [B, 1 + p] with the label in column 0; a scalar in the label's unit, squared.

        The batch is multiplied whole, its label by −1: [label | features] · [−1 | weights] + bias = prediction − label.
        Cutting the label and the features out would read memory with gaps, which costs more than the spare column."""
        minus_label = torch.cat([self.weight.new_full((1, 1), -1.0), self.weight], dim=1)  # [1, 1 + p]
        residuals = functional.linear(batch, minus_label, self.bias).squeeze(1)  # [B]
        return residuals.dot(residuals) / len(batch)

    def coefficients(self) -> tuple[float, list[float]]:
        """Bias and [p] weights as Python numbers."""
        return float(self.bias.item()), self.weight.detach().cpu().squeeze(0).tolist()


def to_safetensors(model: LinearRegression, label: str, features: Sequence[str]) -> bytes:
    """`model.safetensors`: weight [1, p], bias [1]; its one metadata entry, JSON, names the columns they belong to."""
    from safetensors.torch import save

    tensors = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    # one entry only: safetensors writes several in an order that changes from run to run
    return save(tensors, metadata={"cabrank": json.dumps({"label": label, "features": list(features)})})
