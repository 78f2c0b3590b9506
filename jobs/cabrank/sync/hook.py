"""DDP's communication hook, for every strategy: `model.register_comm_hook(strategy, hook)`."""

# no `from __future__ import annotations` here: DDP compares the hook's annotations with the classes themselves

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.futures import Future

from cabrank.sync.base import Strategy


def hook(state: Strategy, bucket: GradBucket) -> Future[torch.Tensor]:
    """Starts one bucket. DDP divides nothing when it has a hook: the sum arrives as a sum."""
    return state.start(bucket.buffer(), bucket.index(), last=bucket.is_last())
