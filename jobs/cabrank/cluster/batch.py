"""AWS Batch: variables only. The children of a multi-node job are told the main node's address; the main node isn't."""

from __future__ import annotations

from cabrank.cluster.context import Environment, JobContext, check_place, read_number
from cabrank.cluster.network import own_address
from cabrank.errors import RendezvousError

ID, ATTEMPT = "AWS_BATCH_JOB_ID", "AWS_BATCH_JOB_ATTEMPT"
INDEX, COUNT = "AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES"
MAIN_INDEX, MAIN_ADDRESS = "AWS_BATCH_JOB_MAIN_NODE_INDEX", "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"


def find(environment: Environment) -> JobContext | None:
    """The context of a Batch job, None elsewhere. `RendezvousError` where the main node's address is not to be had."""
    if ID not in environment:
        return None
    job = environment[ID].partition("#")[0]  # a node's own id is <job>#<index>
    attempt = read_number(environment, ATTEMPT) - 1 if ATTEMPT in environment else 0
    if COUNT not in environment:
        return JobContext(attempt=attempt, job_id=job, why=f"AWS Batch's {ID}, and no {COUNT}")
    count, index, main = (read_number(environment, name) for name in (COUNT, INDEX, MAIN_INDEX))
    check_place(index, count, f"{INDEX} and {COUNT}")
    check_place(main, count, f"{MAIN_INDEX} and {COUNT}")
    rank = (index - main) % count  # the main node is rank 0: its exit code is the job's
    address, assumed = _main_address(environment, rank, count)
    return JobContext(
        rank=rank,
        world=count,
        nodes=tuple(f"{job}#{(main + place) % count}" for place in range(count)),
        node=rank,
        main_address=address,
        main_assumed=assumed,
        attempt=attempt,
        job_id=job,
        why=f"AWS Batch's {INDEX}={index} of {COUNT}={count}"
        + (f"; this is the main node, which is not told its address: took its own, {address}" if assumed else ""),
    )


def _main_address(environment: Environment, rank: int, count: int) -> tuple[str, bool]:
    """The main node's address, and whether it is this node's guess."""
    if given := environment.get(MAIN_ADDRESS):
        return given, False
    if rank > 0:
        raise RendezvousError(
            f"{MAIN_ADDRESS} is not set on node {environment[INDEX]}, which is not the main one: without it nothing "
            "leads to the main node. Batch sets it on the children of a multi-node job; check how this one was started"
        )
    return own_address() if count > 1 else "127.0.0.1", True
