"""`cabrank demo` in a process of its own, in surroundings that try to lead it astray."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cabrank.commands import demo as commands_demo
from cabrank.commands.demo import own_environment
from cabrank.config import DemoConfig
from cabrank.errors import ConfigError

JOBS = Path(__file__).parents[2] / "jobs"
DEAD = "http://127.0.0.1:9"  # the discard port: nobody answers


def demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs it where the user's profile is broken and every proxy and endpoint of theirs is dead."""
    (folder / ".aws").mkdir(exist_ok=True)
    (folder / ".aws" / "config").write_text("[default]\nendpoint_url = http://127.0.0.1:9\nthis line is no setting\n")
    astray = dict.fromkeys(("HTTP_PROXY", "http_proxy", "https_proxy", "ALL_PROXY", "AWS_ENDPOINT_URL"), DEAD)
    astray |= {"AWS_PROFILE": "absent", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true", "HOME": str(folder)}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", "from cabrank.cli import main; main()", "demo", *arguments],
        cwd=folder,
        env={**os.environ, **astray, "PYTHONPATH": str(JOBS)},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_two_demos_in_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = demo(tmp_path, "--rows", "3000", "--parts", "4", "--iterations", "3")
    assert first.returncode == 0, first.stderr
    report = tmp_path / "runs" / "demo" / "report.html"
    lines = first.stdout.splitlines()
    assert lines[-1] == str(report)
    summary = json.loads((report.parent / "summary.json").read_text())
    assert (summary["data_rows"], summary["rows"], summary["steps"]) == (3000, 9000, 3)
    rmses = [f"{summary[name]:,.5g}" for name in ("sgd_rmse", "mean_rmse", "optimum_rmse")]
    assert ["3,000", "4", *rmses] in [line.split() for line in lines]
    assert lines[-2].startswith("SGD is above the mean because")
    assert [line for line in lines if "report.html" in line] == lines[-1:]  # not the one that is gone with its S3
    (report.parent / "notes.txt").write_text("mine")
    commands_demo.run(DemoConfig.of({"out": str(report.parent), "rows": 500, "parts": 1, "iterations": 2}))
    assert capsys.readouterr().out.splitlines()[-1] == str(report)
    assert json.loads((report.parent / "summary.json").read_text())["data_rows"] == 500
    assert (report.parent / "notes.txt").read_text() == "mine"


def test_a_folder_that_is_not_the_demos(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("mine")
    done = demo(tmp_path, "--out", "thesis")
    assert done.returncode == 2
    assert "chapter.tex" in done.stderr
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter.tex"]


def test_results_in_a_store_that_ends_with_the_demo_are_refused() -> None:
    with pytest.raises(ConfigError, match="local folder"):
        commands_demo.run(DemoConfig.of({"out": "s3://bucket/run"}))


def test_the_users_environment_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "mine")
    monkeypatch.setenv("https_proxy", DEAD)
    before = dict(os.environ)
    with own_environment():
        assert "AWS_PROFILE" not in os.environ
        assert "https_proxy" not in os.environ
    assert dict(os.environ) == before
