"""torchrun: its variables, which other launchers set as well, and the command line that starts a job under it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from cabrank.cluster.context import Environment, JobContext, check_place, read_number
from cabrank.errors import ConfigError

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def find(environment: Environment, platform: JobContext) -> JobContext | None:
    """`platform`'s context with the place that torchrun gave this process, None where it is not under torchrun.
    `ConfigError` names what is missing or wrong."""
    if "RANK" not in environment and "WORLD_SIZE" not in environment:
        return None
    missing = [name for name in NEEDED if not environment.get(name)]
    if missing:
        raise ConfigError(
            f"{', '.join(n for n in NEEDED if n not in missing)} are set, and {', '.join(missing)} not: start with "
            "torchrun, which sets all of them, or unset the rest for a world of one"
        )
    rank, world = read_number(environment, "RANK"), read_number(environment, "WORLD_SIZE")
    check_place(rank, world, "RANK and WORLD_SIZE")
    node = read_number(environment, "GROUP_RANK") if "GROUP_RANK" in environment else platform.node
    restarts = (
        read_number(environment, "TORCHELASTIC_RESTART_COUNT") if "TORCHELASTIC_RESTART_COUNT" in environment else 0
    )
    return replace(
        platform,
        rank=rank,
        world=world,
        local_rank=read_number(environment, "LOCAL_RANK") if "LOCAL_RANK" in environment else 0,
        node=node if node < len(platform.nodes) else 0,
        main_address=environment["MASTER_ADDR"],
        main_port=read_number(environment, "MASTER_PORT"),
        main_assumed=False,
        agent_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=platform.attempt + restarts,
        why="torchrun's RANK and WORLD_SIZE" + (f", on {platform.why}" if platform.job_id != "local" else ""),
    )


def command(context: JobContext, processes: int, arguments: Sequence[str]) -> list[str]:
    """The command that starts `cabrank ARGUMENTS` in `processes` processes on this node, under torchrun, which forwards
    SIGTERM and gives up 30 s later; the nodes find each other as `context` says."""
    nodes = len(context.nodes)
    meeting = (
        [f"--node-rank={context.node}", f"--master-addr={context.main_address}", f"--master-port={context.main_port}"]
        if nodes > 1
        else ["--standalone"]
    )
    python = [sys.executable, "-m", "torch.distributed.run"]
    return [*python, f"--nnodes={nodes}", f"--nproc-per-node={processes}", *meeting, "-m", "cabrank", *arguments]
