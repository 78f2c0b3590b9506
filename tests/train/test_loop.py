"""The loop: epochs, what is reported, and what happens when the loss is no number any more."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
import torch

from cabrank.errors import BadValueError, DivergedError, NoDataError
from cabrank.train.feed import epochs
from cabrank.train.loop import train
from cabrank.train.metrics import Step, long_format, to_csv
from cabrank.train.model import LinearRegression

Table = npt.NDArray[np.float64]


class Parts:
    """An iterable of [B, C] batches that counts its passes."""

    def __init__(self, *batches: torch.Tensor) -> None:
        self.batches, self.passes = batches, 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.passes += 1
        return iter(self.batches)


def run(batches: object, iterations: int, clip: float | None = 0.5, rate: float = 0.03) -> tuple[list[Step], bytes]:
    steps: list[Step] = []
    model = LinearRegression(8, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    train(model, batches, optimizer, iterations=iterations, clip_norm=clip, report=steps.append)  # type: ignore[arg-type]
    return steps, model.weight.detach().numpy().tobytes()


def test_the_data_starts_over_and_the_last_batch_of_an_epoch_is_shorter(trips: Table) -> None:
    data = Parts(*(torch.tensor(trips[a:b]) for a, b in ((0, 40), (40, 80), (80, 99))))
    steps, _ = run(data, 7)
    assert [step.step for step in steps] == list(range(7))
    assert [step.epoch for step in steps] == [0, 0, 0, 1, 1, 1, 2]
    assert [step.rows for step in steps] == [40, 40, 19, 40, 40, 19, 40]
    assert data.passes == 3


def test_no_batch_is_read_beyond_the_last_iteration(trips: Table) -> None:
    def batches() -> Iterator[torch.Tensor]:
        yield torch.tensor(trips[:10])
        raise AssertionError("read too far")

    assert len(run(batches(), 1)[0]) == 1


def test_batches_without_rows_are_passed_over_and_data_without_rows_ends() -> None:
    empty, full = torch.empty(0, 9), torch.ones(2, 9)
    numbered = epochs([empty, full, empty])
    assert [(epoch, len(batch)) for epoch, batch in (next(numbered), next(numbered))] == [(0, 2), (1, 2)]
    with pytest.raises(NoDataError, match="no row"):
        next(epochs([empty]))


def test_an_error_of_the_data_comes_through(trips: Table) -> None:
    def batches() -> Iterator[torch.Tensor]:
        yield torch.tensor(trips[:10])
        raise BadValueError("s3://b/part-1.csv:7:2")

    with pytest.raises(BadValueError, match=r"part-1\.csv:7:2"):
        run(batches(), 2)


def test_two_runs_agree_to_the_bit(trips: Table) -> None:
    data = Parts(torch.tensor(trips[:12_345]), torch.tensor(trips[12_345:]))
    (first, weights), (second, same) = run(data, 20), run(data, 20)
    assert weights == same
    assert [(s.mse, s.gradient_norm) for s in first] == [(s.mse, s.gradient_norm) for s in second]


def test_divergence_is_reported_then_raised(trips: Table) -> None:
    steps: list[Step] = []
    model = LinearRegression(8, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
    with pytest.raises(DivergedError) as raised:
        train(model, [torch.tensor(trips)], optimizer, iterations=50, report=steps.append)
    assert not (np.isfinite(steps[-1].mse) and np.isfinite(steps[-1].gradient_norm))
    assert all(np.isfinite(step.mse) for step in steps[:-1])
    message = str(raised.value)
    assert f"iteration {steps[-1].step}:" in message
    assert f"{steps[-2].mse:.6g}" in message
    for remedy in ("--gradient-norm", "--learning-rate than 0.03", "standardise the features"):
        assert remedy in message
    assert raised.value.exit_code == 3


def test_the_first_step_may_be_the_one_that_diverges() -> None:
    with pytest.raises(DivergedError, match="iteration 0: the loss is inf; no loss before it was finite"):
        run([torch.full((4, 9), 1e300, dtype=torch.float64)], 3)


def test_time_is_split_into_the_step_and_the_wait_for_its_batch(trips: Table) -> None:
    def slowly() -> Iterator[torch.Tensor]:
        batch = torch.tensor(trips)
        while True:
            for _ in range(30):
                batch.sort()  # some milliseconds of work that is not the step's
            yield batch[:10]

    steps, _ = run(slowly(), 3)
    assert all(step.wait_seconds > step.seconds > 0 for step in steps[1:])


def test_metrics_csv_is_long_and_exact() -> None:
    step = Step(step=3, epoch=1, rows=19, mse=0.1, gradient_norm=1e300, seconds=0.25, wait_seconds=0.5)
    assert to_csv(long_format([step])).decode().splitlines() == [
        "step,epoch,split,name,value",
        "3,1,train,mse,0.1",
        "3,1,train,gradient_norm,1e+300",
        "3,1,train,rows,19",
        "3,1,train,seconds,0.25",
        "3,1,train,wait_seconds,0.5",
    ]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_takes_the_steps_that_a_cpu_takes(trips: Table) -> None:
    data = [torch.tensor(trips[start : start + 6_000]) for start in range(0, len(trips), 6_000)]
    steps: list[Step] = []
    model = LinearRegression(8, seed=0).to("cuda")
    train(
        model,
        data,
        torch.optim.SGD(model.parameters(), lr=0.03),
        iterations=20,
        clip_norm=0.5,
        report=steps.append,
    )
    assert [s.mse for s in steps] == pytest.approx([s.mse for s in run(data, 20)[0]], rel=1e-9)
    assert all(step.seconds > 0 for step in steps)
