"""The four strategies by name, as `--sync` and `--wire-dtype` give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from cabrank.errors import ConfigError
from cabrank.sync.accumulate import Accumulate
from cabrank.sync.backend import AllReduce
from cabrank.sync.base import Strategy
from cabrank.sync.parameter_server import ParameterServer
from cabrank.sync.peers import Peers
from cabrank.sync.ring import Ring

STRATEGIES: Mapping[str, Callable[..., Strategy]] = {
    Accumulate.name: Accumulate,
    ParameterServer.name: ParameterServer,
    Ring.name: Ring,
    AllReduce.name: AllReduce,
}
SHARDED = "parameter-server-sharded"
WIRE_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def open_strategy(name: str, peers: Peers, wire_dtype: str | None = None) -> Strategy:
    """The strategy called `name`, or the parameter server sharded by bucket for `SHARDED`; `ConfigError` lists the
    names where it is unknown, and where `wire_dtype` is none of `WIRE_DTYPES`."""
    makers: dict[str, Any] = {**STRATEGIES, SHARDED: partial(ParameterServer, sharded=True)}
    if name not in makers:
        raise ConfigError(f"--sync is {name!r}; there are: {', '.join(STRATEGIES)} (and {SHARDED})")
    if wire_dtype is not None and wire_dtype not in WIRE_DTYPES:
        raise ConfigError(f"--wire-dtype is {wire_dtype!r}; there are: {', '.join(WIRE_DTYPES)}")
    strategy: Strategy = makers[name](peers, None if wire_dtype is None else WIRE_DTYPES[wire_dtype])
    return strategy
