"""The baseline job on part files, from the command line's words to the files it leaves."""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import load_file

from cabrank.cli import main
from cabrank.commands import baseline, sample
from cabrank.config import BaselineConfig, SampleConfig
from cabrank.errors import BadValueError, ConfigError, DivergedError, NoDataError, StorageError
from cabrank.local.store import EmbeddedStore
from cabrank.store import open_store

REAL = Path(os.environ.get("CABRANK_REAL_TRIPS", Path(__file__).parents[3] / "shared" / "data" / "dc_taxi"))
COLUMNS = ["fare", "lat", "lon", "to_lat", "to_lon", "year", "month", "weekday", "hour"]
FILES = {"config.json", "metrics.csv", "reading.csv", "summary.json", "loss.png", "report.html", "model.safetensors"}
TIMES = {"seconds", "wait_seconds"}
Table = npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def trips() -> Table:
    """[990, 9]: raw taxi-like columns."""
    draw, rows = np.random.default_rng(7), 990
    places = np.array([38.9, -77.0, 38.9, -77.0]) + draw.normal(0, 0.03, (rows, 4))
    times = np.column_stack([draw.integers(low, high, rows) for low, high in ((2015, 2020), (1, 13), (1, 8), (0, 24))])
    fare = 3.25 + 3 * times[:, 3] + draw.exponential(2.0, rows)
    return np.column_stack([fare, places, times])


@pytest.fixture(scope="module")
def parts(trips: Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trips as three CSV parts."""
    folder = tmp_path_factory.mktemp("trips")
    for number, rows in enumerate(np.array_split(trips, 3)):
        write_part(folder / f"part-{number:05d}-ab-c000.csv", rows)
    return folder


def write_part(path: Path, rows: Table) -> None:
    lines = [",".join(map(repr, row)) for row in rows.tolist()]
    path.write_text("\n".join([",".join(COLUMNS), *lines]) + "\n")


def run(data: Path, out: Path, **settings: Any) -> dict[str, Any]:
    baseline.run(BaselineConfig.of({"data": str(data), "out": str(out), "device": "cpu", **settings}))
    return summary_of(out)


def summary_of(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return found


def metrics_of(out: Path) -> list[dict[str, str]]:
    with (out / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def numpy_rmses(table: Table) -> tuple[float, float]:
    """RMSE of the mean, and of least squares on centred columns."""
    centred = table - table.mean(axis=0)
    scaled = centred[:, 1:] / centred[:, 1:].std(axis=0)
    weights = np.linalg.lstsq(scaled, centred[:, 0], rcond=None)[0]
    return float(table[:, 0].std()), float(np.sqrt(np.mean((scaled @ weights - centred[:, 0]) ** 2)))


def test_the_run_and_all_that_it_leaves(
    parts: Path, trips: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    summary = run(parts, out, batch_size=400, iterations=7)
    mean, optimum = numpy_rmses(trips)
    assert {path.name for path in out.iterdir()} == FILES
    assert summary["mean_rmse"] == pytest.approx(mean, abs=1e-9)
    assert summary["optimum_rmse"] == pytest.approx(optimum, abs=1e-9)
    counts = ("status", "diverged", "steps", "rows", "data_rows", "dropped_rows", "epochs", "dtype", "device")
    assert [summary[name] for name in counts] == ["done", False, 7, 2380, 990, 0, 3, "float64", "cpu"]
    assert summary["seconds_per_iteration"] > 0

    saved = load_file(out / "model.safetensors")
    predicted = trips[:, 1:] @ saved["weight"].numpy()[0] + saved["bias"].numpy()[0]
    assert summary["sgd_rmse"] == pytest.approx(np.sqrt(np.mean((predicted - trips[:, 0]) ** 2)), rel=1e-9)
    assert summary["sgd_rmse"] >= summary["optimum_rmse"]

    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("Iteration: ") for line in lines) == 7
    reported = [json.loads(line) for line in lines if line.startswith('{"step"')]
    assert [step["rows"] for step in reported] == [400, 400, 190] * 2 + [400]
    losses = [float(row["value"]) for row in metrics_of(out) if row["name"] == "mse"]
    assert losses == [step["mse"] for step in reported]
    last = json.loads(lines[-1])
    assert last == {"event": "baseline", **summary, "report": f"file://{out}/report.html"}
    assert json.loads((out / "config.json").read_text())["config"]["batch_size"] == 400


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_run_that_fails_leaves_the_former_one_whole(parts: Path, tmp_path: Path) -> None:
    run(parts, tmp_path / "run", iterations=2)
    former = contents(tmp_path / "run")
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "part-00000-ab-c000.csv").write_text("y,x\n1,2\n3,word\n")
    with pytest.raises(BadValueError):
        run(bad, tmp_path / "run")
    assert contents(tmp_path / "run") == former


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_stopped_leaves_the_former_one_whole(
    parts: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    out = tmp_path / "run"
    run(parts, out, iterations=2)
    former = contents(out)
    words = ["--data", str(parts), "--out", str(out), "--iterations", "1000000", "--device", "cpu"]
    command = [sys.executable, "-m", "cabrank", "baseline", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any(line.startswith("Iteration: ") for line in process.stdout)
        process.send_signal(number)
        _, errors = process.communicate()
    assert process.returncode == code
    assert errors.splitlines()[-1] == f"cabrank: stopped by {number.name}; file://{out}/ was left as it was"
    assert "Traceback" not in errors
    assert contents(out) == former


def test_one_column_is_no_regression(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("fare\n1\n2\n")
    with pytest.raises(ConfigError, match="'fare' only"):
        run(tmp_path / "a.csv", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_perfect_optimum_is_no_measure_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text("y,x\n" + "".join(f"{3 * i + 1},{i}\n" for i in range(50)))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    run(tmp_path / "a.csv", tmp_path / "run", iterations=2)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[-1] for line in lines if line[:1] in (["SGD"], ["mean"], ["optimum"])] == ["—"] * 3


def test_the_first_steps_are_the_textbooks(parts: Path, trips: Table, tmp_path: Path) -> None:
    run(parts, tmp_path / "run", iterations=3, seed=11)
    draw = torch.Generator().manual_seed(11)
    start = torch.nn.init.kaiming_uniform_(torch.empty(9, 8, dtype=torch.float64), generator=draw).numpy()
    weights, bias, losses = start[0].copy(), start[1, 0], []
    for _ in range(3):
        residuals = trips[:, 1:] @ weights + bias - trips[:, 0]
        losses.append(np.mean(residuals**2))
        gradient = np.append(2 * trips[:, 1:].T @ residuals, 2 * residuals.sum()) / len(trips)
        gradient *= 0.5 / np.linalg.norm(gradient)
        weights, bias = weights - 0.03 * gradient[:-1], bias - 0.03 * gradient[-1]
    found = [float(row["value"]) for row in metrics_of(tmp_path / "run") if row["name"] == "mse"]
    assert found == pytest.approx(losses, rel=1e-5)  # the 1e-6 in torch's clipping is the difference


def test_one_seed_gives_one_result_to_the_bit(parts: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        run(parts, tmp_path / name, batch_size=400, iterations=9, seed=5)
    run(parts, tmp_path / "c", batch_size=400, iterations=9, seed=6)
    first, second, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert first == second
    assert first != other
    a, b = ([row for row in metrics_of(tmp_path / name) if row["name"] not in TIMES] for name in "ab")
    assert a == b
    assert len(a) == 9 * 3 + 3


def test_without_clipping_it_explodes_is_reported_and_exits_3(
    parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    with pytest.raises(SystemExit) as raised:
        main(["baseline", "--data", str(parts), "--out", str(out), "--gradient-norm", "none", "--device", "cpu"])
    assert raised.value.code == 3
    message = capsys.readouterr().err
    assert "--gradient-norm 0.5" in message
    assert "Traceback" not in message
    summary = summary_of(out)
    assert (summary["status"], summary["diverged"]) == ("diverged", True)
    assert summary["steps"] < 50
    assert {path.name for path in out.iterdir()} == FILES
    losses = [float(row["value"]) for row in metrics_of(out) if row["name"] == "mse"]
    growth = [math.log10(after / before) for before, after in pairwise(losses[2:11])]
    assert growth == pytest.approx([math.log10(6e10)] * 8, abs=0.1)  # REFERENCE R7
    assert "diverged at iteration" in (out / "report.html").read_text()


def test_an_explosion_cut_short_is_no_success_either(parts: Path, tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"the loss grew from .* to .* in 4 iterations"):
        run(parts, tmp_path / "run", gradient_norm=None, iterations=4)
    assert summary_of(tmp_path / "run")["status"] == "diverged"


def test_label_and_columns_by_name(parts: Path, trips: Table, tmp_path: Path) -> None:
    summary = run(parts, tmp_path / "run", label="hour", columns="fare,weekday", iterations=1)
    mean, optimum = numpy_rmses(trips[:, [8, 0, 7]])
    assert (summary["label"], summary["features"]) == ("hour", ["fare", "weekday"])
    assert summary["optimum_rmse"] == pytest.approx(optimum, abs=1e-9)
    assert summary["mean_rmse"] == pytest.approx(mean, abs=1e-9)


def test_rows_that_nulls_drop_leaves_out_are_counted_and_not_used(trips: Table, tmp_path: Path) -> None:
    holes = trips[:100].copy()
    holes[[3, 50, 51], 4] = np.nan
    (tmp_path / "data").mkdir()
    write_part(tmp_path / "data" / "part-00000-ab-c000.csv", holes)
    summary = run(tmp_path / "data", tmp_path / "run", nulls="drop", batch_size=40, iterations=4)
    assert summary["optimum_rmse"] == pytest.approx(numpy_rmses(np.delete(trips[:100], [3, 50, 51], 0))[1], abs=1e-9)
    assert (summary["data_rows"], summary["dropped_rows"], summary["rows"]) == (97, 3, 39 + 38 + 20 + 39)
    with pytest.raises(BadValueError, match="part-00000"):
        run(tmp_path / "data", tmp_path / "other")


def test_float32(parts: Path, trips: Table, tmp_path: Path) -> None:
    summary = run(parts, tmp_path / "run", dtype="float32", iterations=2)
    assert load_file(tmp_path / "run" / "model.safetensors")["weight"].dtype == torch.float32
    assert summary["optimum_rmse"] == pytest.approx(numpy_rmses(trips)[1], rel=1e-4)


def test_a_batch_larger_than_the_data_is_one_batch_and_said_once(
    parts: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="cabrank"):
        summary = run(parts, tmp_path / "run", batch_size=10**9, iterations=3)
    assert (summary["epochs"], summary["rows"]) == (3, 3 * 990)
    assert sum("one batch an epoch" in record.message for record in caplog.records) == 1


def test_cuda_asked_for_and_absent(parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="--device cpu"):
        run(parts, tmp_path / "run", device="cuda")
    assert not (tmp_path / "run").exists()


def test_bad_data_costs_no_former_results(parts: Path, tmp_path: Path) -> None:
    run(parts, tmp_path / "run", iterations=1)
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(NoDataError):
        run(tmp_path / "nothing", tmp_path / "run")
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_out_that_cannot_be_written_is_found_before_any_step(
    parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError) as raised:
        run(parts, tmp_path / "file" / "run")
    assert raised.value.exit_code == 5
    assert "Iteration" not in capsys.readouterr().out


def test_out_on_the_data_is_refused_and_the_data_unharmed(parts: Path) -> None:
    before = {path.name: path.read_bytes() for path in parts.glob("part-*")}
    with pytest.raises(ConfigError, match="no cabrank run"):
        run(parts, parts)
    assert {path.name: path.read_bytes() for path in parts.glob("part-*")} == before


def test_data_and_run_on_s3(parts: Path, trips: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedStore("cab") as s3:
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        store = open_store("s3://cab/", s3.storage_options)
        for path in parts.glob("part-*.csv"):
            store.put(f"s3://cab/csv/{path.name}", path.read_bytes())
        settings = {"data": "s3://cab/csv/", "out": "s3://cab/runs/1", "iterations": 2, "device": "cpu"}
        baseline.run(BaselineConfig.of(settings))
        left = {info.uri.rsplit("/", 1)[1]: store.read(info) for info in store.list("s3://cab/runs/1/")}
    assert set(left) == FILES
    assert json.loads(left["summary.json"])["optimum_rmse"] == pytest.approx(numpy_rmses(trips)[1], abs=1e-9)


def test_real_trips(tmp_path: Path) -> None:
    path = REAL / "train.csv"
    if not path.exists():
        pytest.skip(f"{path} is not here: set CABRANK_REAL_TRIPS to its folder")
    summary = run(path, tmp_path / "run")
    table = np.loadtxt(path, delimiter=",", skiprows=1)
    rows = np.column_stack([np.ones(len(table)), table[:, 1:]])
    weights = np.linalg.lstsq(rows, table[:, 0], rcond=None)[0]
    assert summary["optimum_rmse"] == pytest.approx(np.sqrt(np.mean((rows @ weights - table[:, 0]) ** 2)), abs=1e-9)
    assert summary["status"] == "done"


def test_features_are_fitted_used_and_kept(tmp_path: Path) -> None:
    sample.run(SampleConfig.of({"dest": str(tmp_path / "taxi"), "rows": 20_000, "parts": 2}))
    settings: dict[str, Any] = {"iterations": 1, "cache_dir": "none"}
    out = tmp_path / "run"
    engineered = run(tmp_path / "taxi", out, features="taxi", **settings)
    fitted = (out / "features.json").read_bytes()
    assert {path.name for path in out.iterdir()} == {*FILES, "features.json"}
    assert len(engineered["features"]) > 8
    again = run(tmp_path / "taxi", tmp_path / "again", features=str(out / "features.json"), **settings)
    assert again["optimum_rmse"] == engineered["optimum_rmse"]
    assert (tmp_path / "again" / "features.json").read_bytes() == fitted
    raw = run(tmp_path / "taxi", out, **settings)
    assert engineered["optimum_rmse"] < raw["optimum_rmse"] / 2
    assert {path.name for path in out.iterdir()} == FILES
