"""The bench of `cabrank devices`: what is measured, what is left out and why, who is ahead from where."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cabrank.train import bench, devices
from cabrank.train.bench import OPERATIONS, Curve, measure, time_call, wins_from
from cabrank.train.bench_plot import bench_png
from cabrank.train.devices import find_machine, free_bytes

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("gpu", "cpu", "size"),
    [
        ({1: 5.0, 2: 5.0, 4: 5.0, 8: 5.0}, {1: 1.0, 2: 2.0, 4: 6.0, 8: 12.0}, 4),
        ({1: 5.0, 2: 1.0, 4: 5.0, 8: 5.0}, {1: 1.0, 2: 2.0, 4: 4.0, 8: 12.0}, 8),  # ahead at 2, but not for good
        ({1: 5.0, 2: 5.0}, {1: 1.0, 2: 5.0}, None),  # a draw is no win
        ({1: 0.5, 2: 0.5}, {1: 1.0, 2: 1.0}, 1),
        ({1: 0.5, 2: 0.5, 4: 9.0}, {1: 1.0, 2: 1.0}, 1),  # 4 was timed on one device only
        ({}, {1: 1.0}, None),
    ],
)
def test_the_gpu_wins_from_where_it_stays_ahead(gpu: dict[int, float], cpu: dict[int, float], size: int | None) -> None:
    assert wins_from(gpu, cpu) == size


def test_every_size_of_every_operation_is_timed() -> None:
    ticks: list[None] = []
    curves = measure(4, [CPU], lambda: ticks.append(None))
    assert [curve.operation.name for curve in curves] == ["add", "multiply", "step"]
    assert all(list(curve.seconds) == [1, 2, 4, 8, 16] and not curve.left_out for curve in curves)
    assert all(0 < seconds < 1 for curve in curves for seconds in curve.seconds.values())
    assert len(ticks) == 15


def test_a_call_is_timed_alone_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now, cost = 0.0, 9.0

    def call() -> None:
        nonlocal now, cost
        now += cost
        cost = 0.002  # only the first one is slow

    monkeypatch.setattr("time.perf_counter", lambda: now)
    assert time_call(call, CPU) == pytest.approx(0.002)


def test_sizes_beyond_the_free_memory_are_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "free_bytes", lambda _: 2 * 12 * 2**3)  # half of it holds three vectors of 2^3 float32
    add, _, step = measure(5, [CPU])
    assert list(add.seconds) == [1, 2, 4, 8]
    assert add.left_out.startswith("add on cpu: 2^4 to 2^5 left out: it takes")
    assert "half of" in add.left_out
    assert list(step.seconds) == []
    assert step.left_out.startswith("step on cpu: 2^0 to 2^5 left out")


def test_a_curve_ends_before_it_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "CURVE_SECONDS", 0.0)
    for curve in measure(2, [CPU]):
        assert list(curve.seconds) == [1] or list(curve.seconds) == []
        assert "s that a curve may take" in curve.left_out


def test_the_operations_do_what_they_say() -> None:
    add, multiply, step = OPERATIONS
    for operation, expected in ((add, 2.0), (multiply, 1.0)):
        result = operation.prepare(3, CPU)()
        assert isinstance(result, torch.Tensor)
        assert (result.tolist(), result.dtype) == ([expected] * 3, torch.float32)
    call = step.prepare(5, CPU)
    losses = [call().mse.item() for _ in range(2)]  # type: ignore[attr-defined]
    assert losses[1] < losses[0]  # it learns: a whole step, the update included


def test_the_plot_shows_one_device_or_two() -> None:
    curves = measure(2, [CPU])
    gpu = [Curve(curve.operation, "cuda", {size: s / 2 for size, s in curve.seconds.items()}) for curve in curves]
    names = {"cpu": "CPU, 2 threads", "cuda": "NVIDIA H200"}
    both = [curve for pair in zip(curves, gpu, strict=True) for curve in pair]
    for drawn, called in ((curves, {"cpu": "CPU, 2 threads"}), (both, names)):
        picture = bench_png(drawn, called)
        assert picture.startswith(b"\x89PNG")
        assert len(picture) > 10_000


def test_the_machine_is_this_one() -> None:
    machine = find_machine()
    assert machine.cores >= 1
    assert machine.threads == torch.get_num_threads()
    assert len(machine.gpus) == torch.cuda.device_count()
    assert 0 < free_bytes(CPU) < 2**50


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    assert devices._free_in_the_container(tmp_path) == 2**63 - 1
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("700\n")
    assert devices._free_in_the_container(tmp_path) == 2**63 - 1
    (tmp_path / "memory.max").write_text("1000\n")
    assert devices._free_in_the_container(tmp_path) == 300


def test_free_memory_is_the_available_one(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       16 kB\nMemFree:         1 kB\nMemAvailable:    3 kB\nHugePages_Total:   0\n")
    assert devices._free_on_the_host(meminfo) == 3072
    assert devices._free_on_the_host(tmp_path / "none") > 2**20
