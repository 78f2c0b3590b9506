"""Who am I, from real files and from variables as the platforms set them; clauses by their numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cabrank.cluster import torchrun
from cabrank.cluster.context import JobContext, find_context
from cabrank.cluster.network import own_address
from cabrank.errors import ConfigError, RendezvousError

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "4711",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
CHILD = {
    "AWS_BATCH_JOB_ID": "f00d#2",
    "AWS_BATCH_JOB_ATTEMPT": "3",
    "AWS_BATCH_JOB_NODE_INDEX": "2",
    "AWS_BATCH_JOB_NUM_NODES": "4",
    "AWS_BATCH_JOB_MAIN_NODE_INDEX": "1",
    "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "10.0.3.7",
}


def write(root: Path, name: str, value: Any) -> None:
    config = root / "input" / "config"
    config.mkdir(parents=True, exist_ok=True)
    (config / name).write_text(value if isinstance(value, str) else json.dumps(value))


def resources(current: str, hosts: list[str]) -> dict[str, Any]:
    return {
        "current_host": current,
        "current_instance_type": "ml.c7i.2xlarge",
        "current_group_name": "homogeneousCluster",
        "hosts": hosts,
        "instance_groups": [{"instance_group_name": "homogeneousCluster", "hosts": hosts[::-1]}],
        "network_interface_name": "eth0",
        "topology": None,
    }


def test_nothing_is_a_world_of_one(tmp_path: Path) -> None:
    found = find_context({}, tmp_path)
    assert (found.rank, found.world, found.attempt, found.model_dir) == (0, 1, 0, None)
    assert found.line() == f"rank 0 of 1 on {found.nodes[0]}: no platform's files or variables were found"


def test_s03_hosts_are_sorted_as_text_and_ranked_by_number(tmp_path: Path) -> None:
    hosts = [f"algo-{n}" for n in (1, 10, 11, 12, 2, 3, 4, 5, 6, 7, 8, 9)]
    write(tmp_path, "resourceconfig.json", resources("algo-10", hosts))
    found = find_context({"TRAINING_JOB_NAME": "taxi-7"}, tmp_path)
    assert (found.rank, found.world, found.node) == (9, 12, 9)
    assert found.nodes == tuple(f"algo-{n}" for n in range(1, 13))
    assert found.line() == (
        f"rank 9 of 12 on algo-10, main node algo-1:29500 through eth0: SageMaker's {tmp_path}/input/config/"
        "resourceconfig.json"
    )
    assert (found.job_id, found.main_assumed, found.interface) == ("taxi-7", False, "eth0")
    assert found.model_dir == tmp_path / "model"
    assert found.failure_file == tmp_path / "output" / "failure"
    assert found.output_dir == tmp_path / "output" / "data"


def test_s02_hyperparameters_lose_their_json_quotes_and_stay_text(tmp_path: Path) -> None:
    write(tmp_path, "resourceconfig.json", resources("algo-1", ["algo-1"]))
    given = {
        "learning-rate": "0.03",
        "batch_size": '"256"',
        "sizes": "[3, 5]",
        "name": "12345",
        "title": 'say \\"hi\\"',
        "dropped": "True",
        "sagemaker_program": "train.py",
        "_tuning_objective_metric": "mse",
    }
    write(tmp_path, "hyperparameters.json", given)
    assert dict(find_context({}, tmp_path).hyperparameters) == {
        "learning_rate": "0.03",
        "batch_size": "256",
        "sizes": "[3, 5]",
        "name": "12345",
        "title": 'say \\"hi\\"',
        "dropped": "True",
    }


def test_s04_s05_channels_are_folders_and_s16_checkpoints_are_where_they_are_said_to_be(tmp_path: Path) -> None:
    write(tmp_path, "resourceconfig.json", resources("algo-1", ["algo-1"]))
    channel = {"TrainingInputMode": "FastFile", "S3DistributionType": "ShardedByS3Key", "RecordWrapperType": "None"}
    write(tmp_path, "inputdataconfig.json", {"train": channel, "valid": {}})
    found = find_context({}, tmp_path)
    train, valid = found.inputs["train"], found.inputs["valid"]
    assert (train.path, train.mode, train.distribution) == (
        tmp_path / "input" / "data" / "train",
        "FastFile",
        "ShardedByS3Key",
    )
    assert (valid.mode, valid.distribution) == ("File", "FullyReplicated")
    assert found.checkpoint_dir is None
    for local, expected in (("/opt/ml/checkpoints", tmp_path / "checkpoints"), ("/mnt/c", Path("/mnt/c"))):
        write(tmp_path, "checkpointconfig.json", {"S3Uri": "s3://b/c", "LocalPath": local})
        assert find_context({}, tmp_path).checkpoint_dir == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{", "cannot be read as JSON"),
        ([1], "holds list, and not an object"),
        (resources("algo-3", ["algo-1", "algo-2"]), "current_host is 'algo-3', which is not one of algo-1, algo-2"),
        (resources("algo-1", ["algo-1", "algo-1"]), "has to list each node once"),
        ({"current_host": "algo-1"}, "hosts is None"),
    ],
)
def test_a_damaged_resourceconfig_is_named(tmp_path: Path, value: Any, message: str) -> None:
    write(tmp_path, "resourceconfig.json", value)
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        find_context({}, tmp_path)
    assert "resourceconfig.json" in str(caught.value)


def test_b03_a_child_is_told_the_main_nodes_address(tmp_path: Path) -> None:
    found = find_context(CHILD, tmp_path)
    assert (found.rank, found.world, found.attempt, found.job_id) == (1, 4, 2, "f00d")
    assert (found.main_address, found.main_assumed) == ("10.0.3.7", False)
    assert found.nodes == ("f00d#1", "f00d#2", "f00d#3", "f00d#0")


def test_b03_the_main_node_takes_its_own_address(tmp_path: Path) -> None:
    main = {name: value for name, value in CHILD.items() if "ADDRESS" not in name}
    found = find_context({**main, "AWS_BATCH_JOB_NODE_INDEX": "1"}, tmp_path)
    assert (found.rank, found.main_address, found.main_assumed) == (0, own_address(), True)
    assert "is not told its address: took its own" in found.line()


def test_b03_a_child_that_is_told_nothing_cannot_guess(tmp_path: Path) -> None:
    told = {name: value for name, value in CHILD.items() if "ADDRESS" not in name}
    with pytest.raises(RendezvousError, match="ADDRESS is not set on node 2, which is not the main one"):
        find_context(told, tmp_path)


def test_b01_a_job_of_one_node(tmp_path: Path) -> None:
    found = find_context({"AWS_BATCH_JOB_ID": "cafe", "AWS_BATCH_JOB_ATTEMPT": "1"}, tmp_path)
    assert (found.rank, found.world, found.attempt, found.job_id) == (0, 1, 0, "cafe")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"AWS_BATCH_JOB_NODE_INDEX": "4"}, "are 4 and 4: ranks run from 0"),
        ({"AWS_BATCH_JOB_MAIN_NODE_INDEX": "9"}, "MAIN_NODE_INDEX and AWS_BATCH_JOB_NUM_NODES are 9 and 4"),
        ({"AWS_BATCH_JOB_NUM_NODES": "four"}, "NUM_NODES is 'four'; it has to be a whole number"),
        ({"AWS_BATCH_JOB_ATTEMPT": "-1"}, "ATTEMPT is '-1'"),
    ],
)
def test_wrong_variables_are_named(tmp_path: Path, changed: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_context({**CHILD, **changed}, tmp_path)


def test_torchrun_gives_the_place_and_the_platform_keeps_the_paths(tmp_path: Path) -> None:
    write(tmp_path, "resourceconfig.json", resources("algo-2", ["algo-1", "algo-2"]))
    found = find_context(TORCHRUN, tmp_path)
    assert (found.rank, found.world, found.local_rank, found.node) == (5, 8, 1, 1)
    assert (found.main_address, found.main_port, found.agent_store) == ("127.0.0.1", 4711, True)
    assert (found.nodes, found.attempt) == (("algo-1", "algo-2"), 2)
    assert found.model_dir == tmp_path / "model"
    assert found.line().startswith("rank 5 of 8 on algo-2, main node 127.0.0.1:4711 through eth0: torchrun's RANK")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"MASTER_ADDR": ""}, "RANK, WORLD_SIZE, MASTER_PORT are set, and MASTER_ADDR not"),
        ({"RANK": "8"}, "RANK and WORLD_SIZE are 8 and 8"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT is 'http'"),
    ],
)
def test_half_of_torchruns_variables_is_an_error(tmp_path: Path, changed: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_context({**TORCHRUN, **changed}, tmp_path)


def test_the_command_for_several_devices() -> None:
    context = JobContext(rank=1, world=2, node=1, nodes=("algo-1", "algo-2"), main_address="algo-1")
    line = torchrun.command(context, 4, ["ring", "--data", "taxi"])
    assert line[1:] == [
        *("-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=4"),
        *("--node-rank=1", "--master-addr=algo-1", "--master-port=29500", "-m", "cabrank", "ring", "--data", "taxi"),
    ]
    assert "--standalone" in torchrun.command(JobContext(), 4, ["ring"])
