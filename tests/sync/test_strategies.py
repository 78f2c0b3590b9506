"""All strategies behind the one seam: equal weights, exact bytes, wire dtypes, unknown names."""

from __future__ import annotations

import crew_tasks
import numpy as np
import pytest
import torch
from crew import Crew

from cabrank.errors import ConfigError
from cabrank.sync.peers import Peers, alone
from cabrank.sync.strategies import SHARDED, open_strategy


def _train(crew: Crew, n: int, name: str, steps: int = 50) -> list[bytes]:
    answers = crew.run(crew_tasks.train, n, name, torch.float64, steps, ranks=n)
    assert all(hooked for _, hooked in answers)
    return [weights for weights, _ in answers]


def test_all_strategies_end_with_the_weights_of_one_process_over_all_rows(crew: Crew) -> None:
    (alone_,) = _train(crew, 1, "accumulate")
    trained = {name: _train(crew, 4, name) for name in ("ring", "allreduce", "parameter-server", SHARDED)}
    for weights in trained.values():
        assert weights == weights[:1] * 4  # every rank the same, bit for bit
        np.testing.assert_allclose(np.frombuffer(weights[0]), np.frombuffer(alone_), rtol=1e-12, atol=1e-12)
    assert trained["ring"] == trained["allreduce"]
    assert trained["parameter-server"] == trained[SHARDED]
    assert _train(crew, 2, "ring") == _train(crew, 2, "allreduce") == _train(crew, 2, "parameter-server")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["ring", "parameter-server"])
def test_a_narrow_wire_rounds_what_travels_and_nothing_else(crew: Crew, name: str, dtype: torch.dtype) -> None:
    answers = crew.run(crew_tasks.sum_on_the_wire, name, "bfloat16", dtype, ranks=3)
    exact = sum(crew_tasks.numbers(1000, dtype, rank).double() for rank in range(3))
    for answer in answers:
        assert answer["sum"] == answers[0]["sum"]  # what is not the same on all ranks would drift apart
        assert answer["dtype"] == dtype
    np.testing.assert_allclose(answers[0]["sum"], exact, rtol=0, atol=3 * 4 * 2**-8)  # 3 roundings to 8 bits below 4
    assert sum(answer["sent"] for answer in answers) == 2 * 2 * 1000 * 2  # 2·(N - 1) times 2 bytes an element


def test_a_wide_wire_sums_halves_in_float32(crew: Crew) -> None:
    answers = crew.run(crew_tasks.sum_on_the_wire, "ring", "float32", torch.bfloat16, ranks=3)
    wide = [crew_tasks.numbers(1000, torch.bfloat16, rank).float() for rank in range(3)]
    assert answers[0]["sum"] == (wide[0] + wide[1] + wide[2]).bfloat16().tolist()
    assert sum(answer["sent"] for answer in answers) == 2 * 2 * 1000 * 4


def test_a_parameter_server_sends_for_all_and_a_sharded_one_takes_turns(crew: Crew) -> None:
    plain = crew.run(crew_tasks.serve_buckets, False, ranks=3)
    sharded = crew.run(crew_tasks.serve_buckets, True, ranks=3)
    size = 300_000 * 4
    assert [sent for _, sent in plain] == [[2 * size] * 5, [size] * 5, [size] * 5]
    assert [sent for _, sent in sharded] == [
        [2 * size, size, size, 2 * size, size],
        [size, 2 * size, size, size, 2 * size],
        [size, size, 2 * size, size, size],
    ]
    assert all(sums == plain[0][0] for sums, _ in plain + sharded)


def test_bytes_of_all_reduce_are_glooss_ring(crew: Crew) -> None:
    ours = crew.run(crew_tasks.sum_on_the_wire, "ring", None, torch.float32, ranks=3)
    theirs = crew.run(crew_tasks.sum_on_the_wire, "allreduce", None, torch.float32, ranks=3)
    assert ours == theirs


@pytest.mark.parametrize(
    ("name", "wire", "message"),
    [
        ("rign", None, "--sync is 'rign'; there are: accumulate, parameter-server, ring, allreduce"),
        ("ring", "float8", "--wire-dtype is 'float8'; there are: float32, bfloat16"),
        ("accumulate", "bfloat16", "sends nothing"),
        ("allreduce", "bfloat16", "--sync allreduce adds in the dtype that it sends"),
    ],
)
def test_what_cannot_be_says_what_can(name: str, wire: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_strategy(name, alone(), wire)


def test_accumulate_is_for_one_process() -> None:
    with pytest.raises(ConfigError, match="there are 2: take parameter-server, ring or allreduce"):
        open_strategy("accumulate", Peers(None, 0, 2, ("a", "b")))


@pytest.mark.parametrize("name", ["accumulate", "parameter-server", SHARDED, "ring", "allreduce"])
def test_a_world_of_one_sends_nothing(name: str) -> None:
    strategy = open_strategy(name, alone())
    bucket = torch.arange(5.0)
    assert strategy.start(bucket).value() is bucket
    assert strategy.account.total.sent == strategy.account.total.received == 0
    assert bucket.tolist() == [0, 1, 2, 3, 4]
