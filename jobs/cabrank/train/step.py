"""One optimizer step, as a sentence: loss, gradients, sync, clip, update."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn


class Model(Protocol):
    """What a step needs of a model."""

    def mean_squared_error(self, batch: Tensor) -> Tensor:
        """Loss of a batch [B, C], a scalar."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """What the optimizer updates."""


Sync = Callable[[Model], None]
"""Called between backward and clip; returns when every `.grad` is that of the mean over all ranks' rows."""


def alone(_: Model) -> None:
    """The sync of a world of one: its gradients are those of all rows already."""


class Outcome(NamedTuple):
    """What a step found, still on its device: reading it waits for the device."""

    mse: Tensor
    gradient_norm: Tensor


def take_step(
    model: Model, batch: Tensor, optimizer: torch.optim.Optimizer, clip_norm: float | None = None, sync: Sync = alone
) -> Outcome:
    """One step on `batch` [B, C]. The gradient, all parameters as one vector, is scaled down to `clip_norm` where it is
    longer; None leaves it as it is. On a GPU the step is queued, not waited for."""
    mse = model.mean_squared_error(batch)
    optimizer.zero_grad()
    mse.backward()  # type: ignore[no-untyped-call]
    sync(model)
    norm = nn.utils.clip_grad_norm_(model.parameters(), math.inf if clip_norm is None else clip_norm)
    optimizer.step()
    return Outcome(mse.detach(), norm)
