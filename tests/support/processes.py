"""Processes that find torch imported already: forked from a server that did it once, which takes seconds a time."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext

_PRELOADED = ["torch", "torch._dynamo", "torch.distributed", "torch.nn.parallel", "crew_tasks", "rank_program"]


def fork_server() -> ForkServerContext:
    """Where to start processes from; modules of tests/support can be imported in them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context
