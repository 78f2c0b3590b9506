"""Who am I: this process's place among the ones it trains with, found from what the platform left, and why.

    /opt/ml/input/config/*.json     SageMaker           (sagemaker.py)
    AWS_BATCH_JOB_*                 AWS Batch           (batch.py)
    RANK, WORLD_SIZE, MASTER_*      torchrun            (torchrun.py); over either of the two, whose paths stay
    nothing                         a world of one

Only this room reads those. Finding out reads files and variables; `network.reach` then speaks to the network.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cabrank.errors import ConfigError

Environment = Mapping[str, str]
PORT = 29500  # torchrun's default: security groups written for torch let it through
SAGEMAKER_ROOT = Path("/opt/ml")


@dataclass(frozen=True, slots=True)
class Channel:
    """One of SageMaker's inputs, as a folder."""

    path: Path
    mode: str
    """File | FastFile | Pipe."""
    distribution: str
    """FullyReplicated: all objects on each node; ShardedByS3Key: some of them, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """This process's place, and where its job's files go."""

    rank: int = 0
    world: int = 1
    """Processes in all: one a node, until torchrun starts more."""
    local_rank: int = 0
    """Which of its node's devices is this process's."""
    nodes: tuple[str, ...] = field(default_factory=lambda: (socket.gethostname(),))
    """Names of the nodes, the main one first."""
    node: int = 0
    """This process's place in `nodes`."""
    main_address: str = "127.0.0.1"
    """Name or address of the node that rank 0 runs on."""
    main_port: int = PORT
    main_assumed: bool = False
    """Nobody gave the main address: this node is the main one, and took what looks like its own."""
    agent_store: bool = False
    """torchrun already listens at the main address; otherwise rank 0 is to."""
    interface: str | None = None
    """Network interface that leads to the main node, as far as it was told or found."""
    attempt: int = 0
    """How often this job was started before."""
    job_id: str = "local"
    hyperparameters: Mapping[str, str] = field(default_factory=dict)
    """Flags by field name, as text: a config class coerces each by its declared type."""
    inputs: Mapping[str, Channel] = field(default_factory=dict)
    model_dir: Path | None = None
    """What is left here the platform uploads at the end, from all nodes into one archive."""
    checkpoint_dir: Path | None = None
    """What is left here the platform copies away at once, and back before a restart."""
    output_dir: Path | None = None
    failure_file: Path | None = None
    """Its first 1,024 characters become the platform's reason for a failure."""
    why: str = "no platform's files or variables were found"

    def line(self) -> str:
        """What was concluded, and why, for the log's first line."""
        here = f"rank {self.rank} of {self.world} on {self.nodes[self.node]}"
        if self.world == 1:
            return f"{here}: {self.why}"
        through = f" through {self.interface}" if self.interface else ""
        return f"{here}, main node {self.main_address}:{self.main_port}{through}: {self.why}"


def find_context(environment: Environment = os.environ, root: Path = SAGEMAKER_ROOT) -> JobContext:
    """This process's `JobContext`. `root` stands for SageMaker's /opt/ml. `ConfigError` names the variable or the file
    that is missing or wrong."""
    from cabrank.cluster import batch, sagemaker, torchrun

    found = sagemaker.find(environment, root) or batch.find(environment) or JobContext()
    return torchrun.find(environment, found) or found


def read_json(path: Path) -> dict[str, Any]:
    """An object from a file of the platform's; `ConfigError` where it is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as JSON ({error}); the platform writes it before a start") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds {type(value).__name__}, and not an object")
    return value


def read_number(environment: Environment, name: str) -> int:
    """A variable that is a whole number from 0 on; `ConfigError` names it otherwise."""
    text = environment.get(name)
    if text is None or not re.fullmatch(r"[0-9]+", text):
        state = "is not set" if text is None else f"is {text!r}"
        raise ConfigError(f"{name} {state}; it has to be a whole number")
    return int(text)


def check_place(rank: int, world: int, names: str) -> None:
    """`ConfigError` unless `rank` is one of `world`; `names` are the two variables."""
    if not 0 <= rank < world:
        raise ConfigError(f"{names} are {rank} and {world}: ranks run from 0 to one less than there are")
