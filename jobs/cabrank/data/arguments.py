"""The dataset's arguments, checked before anything is looked at: `ConfigError` with the argument's name and value."""

from __future__ import annotations

import operator
import os
from typing import Any

import torch

from cabrank.data.cache import DecodedCache
from cabrank.errors import ConfigError

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


def batch_rows(batch_size: int | None, shard_size: int | None) -> int:
    """The smaller of the two, as in the original class; 1 where neither is given, as in a DataLoader."""
    given = {"batch_size": batch_size, "shard_size": shard_size}
    return min((whole(name, size, 1) for name, size in given.items() if size is not None), default=1)


def rank_of_world(worker: int | None, replicas: int | None) -> tuple[int, int]:
    """(rank, how many there are); 0 of 1 where nothing is said."""
    rank, world = whole("worker", worker, 0, default=0), whole("replicas", replicas, 1, default=1)
    if rank >= world:
        raise ConfigError(f"worker is {rank}: of {world} replicas it must be 0 to {world - 1}")
    return rank, world


def whole(name: str, value: Any, least: int, default: int | None = None) -> int:
    """`value`, or `default` for None, as an int: any type of whole number, numpy's too, that is `least` or more."""
    try:
        number = operator.index(default if value is None and default is not None else value)
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}: it must be a whole number, {least} or more")
    return number


def dtype_name(dtype: Any) -> str:
    """A name of `DTYPES`, from a name, torch's dtype or numpy's."""
    name = dtype.__name__ if isinstance(dtype, type) else str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ConfigError(f"dtype is {dtype!r}: it must be one of {', '.join(DTYPES)}")
    return name


def open_cache(folder: str | os.PathLike[str] | None, limit_bytes: int | None) -> DecodedCache | None:
    """The cache in `folder`, the user's own for "auto", none for None."""
    if folder is None:
        return None
    limit = None if limit_bytes is None else whole("cache_bytes", limit_bytes, 0)
    return DecodedCache(None if folder == "auto" else os.fspath(folder), limit)
