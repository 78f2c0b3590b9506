"""The console: exact lines, JSON that strict readers take, and a bar only where there is a terminal."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from cabrank.console import counted, json_line, steps, table, track
from cabrank.train.metrics import Step

JOBS = Path(__file__).parents[1] / "jobs"


def a_step(step: int = 0, mse: float = 1590566.2249) -> Step:
    return Step(step, epoch=0, rows=1000, mse=mse, gradient_norm=3.5, seconds=0.0204, wait_seconds=0.0796)


def test_a_step_prints_the_fields_line_and_then_json(capsys: pytest.CaptureFixture[str]) -> None:
    with steps(2) as report:
        report(a_step(0))
        report(a_step(11, mse=0.5))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Iteration: 000, Seconds/Iteration: 0.020 MSE: 1590566.22"
    assert lines[2] == "Iteration: 011, Seconds/Iteration: 0.020 MSE: 0.50"
    assert json.loads(lines[1]) == {
        "step": 0,
        "mse": 1590566.2249,
        "rows": 1000,
        "seconds": 0.0204,
        "rows_per_second": pytest.approx(10_000),  # the wait for the batch is counted
        "gradient_norm": 3.5,
    }


def test_json_has_no_nan_and_no_infinity() -> None:
    line = json_line({"mse": float("inf"), "norm": float("nan"), "rows": 3})
    assert line == '{"mse":null,"norm":null,"rows":3}'


def test_progress_ends_with_one_json_line_and_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    with track("counting", total=None) as advance:
        advance(40)
        advance(2)
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["rows"] == 42
    assert "\x1b" not in line


def test_a_table_takes_square_brackets_to_the_letter(capsys: pytest.CaptureFixture[str]) -> None:
    table("Results", ["model", "RMSE [USD]"], [["least squares [best]", "1.5"]])
    out = capsys.readouterr().out
    assert "RMSE [USD]" in out
    assert "least squares [best]" in out


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_terminal_gets_a_bar_and_the_same_line_but_no_json() -> None:
    script = (
        "from cabrank.console import steps; from cabrank.train.metrics import Step\n"
        "with steps(1) as report: report(Step(0, 0, 1000, 1590566.2249, 3.5, 0.0204, 0.0796))"
    )
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(JOBS), "TERM": "xterm", "COLUMNS": "120"}
    subprocess.run([sys.executable, "-c", script], stdout=theirs, stderr=theirs, env=environment, check=True)
    os.close(theirs)
    seen = b""
    while chunk := _read(ours):
        seen += chunk
    os.close(ours)
    assert b"Iteration: 000, Seconds/Iteration: 0.020 MSE: 1590566.22\r\n" in seen
    assert b"10,000 rows/s" in seen
    assert b'{"step"' not in seen


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # how Linux says that the other end is closed
        return b""


def test_a_narrow_place_breaks_no_name(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    names = ["destination_block_longitude_double", "s3://bucket/a long name/part-00000.csv"]
    table("Statistics", ["column", "mean"], [[name, "-77.0123456789"] for name in names])
    out = capsys.readouterr().out
    assert all(any(name in line and "-77.0123456789" in line for line in out.splitlines()) for name in names)


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [(1, "row", "1 row"), (0, "row", "0 rows"), (2000, "batch", "2,000 batches"), (3, "entry", "3 entries")],
)
def test_a_number_and_its_noun_agree(number: int, noun: str, text: str) -> None:
    assert counted(number, noun) == text
