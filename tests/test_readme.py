"""What the README tells people to type does what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cabrank.cli import VERBS
from cabrank.local.store import EmbeddedStore

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent


def blocks(language: str) -> list[str]:
    """The fenced blocks of one language; "" for those of none."""
    fenced = README.split("```")[1::2]
    return [body for first, _, body in (block.partition("\n") for block in fenced) if first == language]


SCRIPTS, LOCAL, ON_S3 = blocks("sh")


def run(block: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **environment}
    command = ["sh", "-euc", block]
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, check=False)


@pytest.fixture
def s3() -> Iterator[EmbeddedStore]:
    with EmbeddedStore("my-bucket") as store:
        yield store


def test_the_two_commands_are_scripts_that_run_what_is_said() -> None:
    assert re.findall(r"^scripts/(\w+)", SCRIPTS, re.MULTILINE) == ["demo", "test"]
    for name, module in (("demo", "cabrank demo"), ("test", "pytest")):
        body = (ROOT / "scripts" / name).read_text(encoding="utf-8").splitlines()
        assert body[-1] == f'exec "$python" -m {module} "$@"'


def test_the_steps_and_the_python_run_as_printed(tmp_path: Path) -> None:
    done = run(LOCAL, tmp_path)
    assert done.returncode == 0, done.stderr
    left = {path.name for path in (tmp_path / "runs" / "taxi").iterdir()}
    for name in re.findall(
        r"`([a-z]+\.[a-z]+)`", README.partition("A run's folder holds")[2].partition("On a terminal")[0]
    ):
        assert name in left
    code = "\n".join(blocks("python"))
    python = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert python.returncode == 0, python.stderr
    assert python.stdout.startswith("100000 rows in 12 parts; 25 batches; columns: (")


def test_the_steps_run_on_s3_as_printed(tmp_path: Path, s3: EmbeddedStore) -> None:
    done = run(ON_S3, tmp_path, **s3.environment)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())


def test_the_demo_in_small(tmp_path: Path) -> None:
    done = run("cabrank demo --rows 2000 --parts 3 --iterations 3", tmp_path)
    assert done.returncode == 0, done.stderr
    report = Path(done.stdout.splitlines()[-1])
    assert report.samefile(tmp_path / "runs" / "demo" / "report.html")
    for word in ("rows", "parts", "SGD", "mean", "optimum", "2,000"):
        assert word in done.stdout


def test_each_verb_stands_in_the_table_of_jobs() -> None:
    assert sorted(re.findall(r"^\| `(\w+)", README, re.MULTILINE)) == sorted(config.verb.split()[0] for config in VERBS)


def test_the_tree_shows_only_what_exists() -> None:
    tree = blocks("")[-1]
    assert tree.startswith("jobs/cabrank/ ")
    for line in tree.splitlines():
        name = line.split()[0]
        assert (ROOT / ("jobs/cabrank" if line.startswith("  ") else "") / name).exists(), name
    for script in next(line for line in tree.splitlines() if line.startswith("scripts/")).split()[1:]:
        assert (ROOT / "scripts" / script).exists()


def test_every_exit_code_is_explained() -> None:
    from cabrank import errors

    codes = {
        value.exit_code for value in vars(errors).values() if isinstance(value, type) and hasattr(value, "exit_code")
    }
    from_outside = {"0", "130", "141", "143"}
    assert {str(code) for code in codes} | from_outside == set(re.findall(r"^\| (\d+) \|", README, re.MULTILINE))


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert targets
    assert all((ROOT / target).exists() for target in targets if "://" not in target)
