"""`cabrank devices`, run as a process, and on machines that are not this one."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cabrank.commands import devices
from cabrank.config import DevicesConfig
from cabrank.errors import ConfigError
from cabrank.train.bench import OPERATIONS, Curve
from cabrank.train.devices import Gpu, Machine

H200 = Gpu("NVIDIA H200", "9.0", 150_000_000_000, 132)
ADD = OPERATIONS[0]


def cabrank(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cabrank", "devices", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_bench_prints_json_lines_and_writes_table_and_plot(tmp_path: Path) -> None:
    out = tmp_path / "with space" / "bench"
    done = cabrank("--bench", "--max-exponent", "3", "--out", str(out))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[0]["event"] == "devices"
    assert lines[0]["cores"] >= 1
    points = [line for line in lines if line.get("event") == "bench"]
    on_cpu = [(point["operation"], point["size"]) for point in points if point["device"] == "cpu"]
    assert on_cpu == [(operation.name, size) for operation in OPERATIONS for size in (1, 2, 4, 8)]
    with (out / "bench.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    assert [float(row["seconds"]) for row in written] == [point["seconds"] for point in points]
    assert (out / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in out.iterdir()) == ["bench.csv", "bench.png"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_one_line_says_so(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="cabrank"):
        devices.run(DevicesConfig.of({}))
    assert json.loads(capsys.readouterr().out)["gpus"] == []
    assert caplog.messages == ["no CUDA device here: jobs train on the CPU"]


def test_a_folder_without_a_bench_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--bench"):
        devices.run(DevicesConfig.of({"out": str(tmp_path / "x")}))
    assert not list(tmp_path.iterdir())


def test_a_terminal_gets_tables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    devices.show_machine(Machine(16, 8, (H200,)))
    curves = [Curve(ADD, "cpu", {1: 1e-6, 2: 3e-6, 4: 5e-2}), Curve(ADD, "cuda", {1: 2e-6, 2: 2e-6})]
    devices.show_bench(curves)
    shown = capsys.readouterr().out
    for text in ("CPU, 16 cores", "NVIDIA H200", "9.0", "139.7 GiB", "132", "1.0 µs", "50.0 ms", "–"):
        assert text in shown
    assert "add: the GPU is ahead from 2 on" in shown


def test_where_the_gpu_never_leads_it_says_so() -> None:
    slow = [Curve(ADD, "cpu", {1: 1e-6}), Curve(ADD, "cuda", {1: 2e-6})]
    assert devices.gpu_leads(slow) == {"add": None}
    assert devices.gpu_leads(slow[:1]) == {}
