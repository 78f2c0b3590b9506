"""SageMaker training: what it writes under /opt/ml before it starts the container."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cabrank.cluster.context import Channel, Environment, JobContext, read_json
from cabrank.errors import ConfigError


def find(environment: Environment, root: Path) -> JobContext | None:
    """The context that `root`/input/config describes, or None where there is no resourceconfig.json."""
    config = root / "input" / "config"
    resources = config / "resourceconfig.json"
    if not resources.exists():
        return None
    described = read_json(resources)
    hosts = sorted(_hosts(described, resources), key=natural_order)
    rank = hosts.index(_current(described, hosts, resources))
    interface = described.get("network_interface_name")
    return JobContext(
        rank=rank,
        world=len(hosts),
        nodes=tuple(hosts),
        node=rank,
        main_address=hosts[0],
        interface=interface if isinstance(interface, str) and interface else None,
        job_id=environment.get("TRAINING_JOB_NAME", "sagemaker"),
        hyperparameters=_hyperparameters(config / "hyperparameters.json"),
        inputs=_inputs(config / "inputdataconfig.json", root / "input" / "data"),
        model_dir=root / "model",
        checkpoint_dir=_checkpoints(config / "checkpointconfig.json", root / "checkpoints"),
        output_dir=root / "output" / "data",
        failure_file=root / "output" / "failure",
        why=f"SageMaker's {resources}",
    )


def natural_order(name: str) -> list[tuple[int, str]]:
    """A sort key in which algo-2 comes before algo-10. The platform sorts as text; every node has to agree on ranks."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", name)]


def decode(text: str) -> str:
    """A hyperparameter without the JSON quotes that tuning jobs and older SDKs put around it. Everything else stays
    text, for the field's own type to say what it is: a run name of 12345 is a name."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, str) else text


def _hosts(described: dict[str, Any], path: Path) -> list[str]:
    hosts = described.get("hosts")
    if not isinstance(hosts, list) or not hosts or len({str(host) for host in hosts}) != len(hosts):
        raise ConfigError(f"{path}: hosts is {hosts!r}; it has to list each node once")
    return [str(host) for host in hosts]


def _current(described: dict[str, Any], hosts: list[str], path: Path) -> str:
    current = described.get("current_host")
    if current not in hosts:
        raise ConfigError(f"{path}: current_host is {current!r}, which is not one of {', '.join(hosts)}")
    return str(current)


def _hyperparameters(path: Path) -> Mapping[str, str]:
    """Flags by field name; what the platform's own tools add for themselves is left out."""
    given = read_json(path) if path.exists() else {}
    ours = {key: value for key, value in given.items() if not key.startswith(("sagemaker_", "_"))}
    return {key.replace("-", "_"): decode(str(value)) for key, value in ours.items()}


def _inputs(path: Path, data: Path) -> Mapping[str, Channel]:
    described = read_json(path) if path.exists() else {}
    return {
        name: Channel(
            data / name,
            channel.get("TrainingInputMode", "File"),
            channel.get("S3DistributionType", "FullyReplicated"),
        )
        for name, channel in described.items()
    }


def _checkpoints(path: Path, default: Path) -> Path | None:
    """The folder that is copied to S3 during the run; None where the request asked for none."""
    if not path.exists():
        return None
    local = read_json(path).get("LocalPath")
    return Path(local) if local and local != "/opt/ml/checkpoints" else default
