"""The house rules that a machine can hold: who imports whom, what stays light, how code reads."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "jobs" / "cabrank"
FILES = sorted(SOURCE.rglob("*.py"))
LEVELS = [
    ["store", "config", "console", "errors", "nulls"],
    ["data", "cluster"],
    ["train", "sync", "features", "local", "cloud"],
    ["commands"],
    ["cli", "__init__", "__main__"],
]
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
KEEPERS = {  # foreign packages that only some rooms may import
    "boto3": {"store", "cloud"},
    "botocore": {"store", "cloud"},
    "s3fs": {"store"},
    "fsspec": {"store"},
    "moto": {"local"},
    "infra": set[str](),
}
HEAVY = {"boto3", "botocore", "fsspec", "matplotlib", "moto", "numpy", "pandas", "pyarrow", "s3fs", "torch"}


def _name(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def _room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of each import, those inside functions too; `from a import b` gives `a.b`."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{_name(path)}:{node.lineno}: imports are absolute"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def _target_room(dotted: str) -> str:
    second = dotted.split(".")[1]
    return second if second in LEVEL else "__init__"


def test_every_module_lives_in_a_known_room() -> None:
    assert len(FILES) > 5
    assert {_room(path) for path in FILES} <= set(LEVEL)


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_imports_go_one_way(path: Path) -> None:
    ours = [(line, name) for line, name in _imports(path) if name.split(".")[0] == "cabrank"]
    upward = [f"{line}: {name}" for line, name in ours if LEVEL[_target_room(name)] > LEVEL[_room(path)]]
    assert not upward


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_foreign_packages_stay_in_their_rooms(path: Path) -> None:
    strays = [
        f"{line}: {name}"
        for line, name in _imports(path)
        if (keepers := KEEPERS.get(name.split(".")[0])) is not None and _room(path) not in keepers
    ]
    assert not strays


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_only_the_taxi_module_knows_a_column(path: Path) -> None:
    named = re.findall(
        r"fareamount|block_l(?:at|ong)itude|(?:year|month|dow|hour)_integer", path.read_text(encoding="utf-8")
    )
    assert not named or _name(path) == "data/taxi.py"


def test_the_command_line_loads_nothing_heavy() -> None:
    command = [sys.executable, "-X", "importtime", "-c", "import cabrank.cli"]
    trace = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stderr
    loaded = {line.rpartition("|")[2].strip().split(".")[0] for line in trace.splitlines()}
    assert "cabrank" in loaded
    assert not loaded & HEAVY


def test_public_names() -> None:
    import cabrank

    assert cabrank.__all__ == ["ObjectStorageDataset"]
    assert isinstance(cabrank.ObjectStorageDataset, type)
    with pytest.raises(AttributeError, match="no attribute 'Dataset'"):
        _ = cabrank.Dataset


def _definitions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_files_and_functions_stay_readable(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400
    lengths = {
        n.name: (n.end_lineno or 0) - n.lineno + 1 for n in _definitions(_tree(path)) if not isinstance(n, ast.ClassDef)
    }
    assert not {name: length for name, length in lengths.items() if length > 60}


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_public_modules_classes_and_functions_say_what_they_are(path: Path) -> None:
    tree = _tree(path)
    public = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef) and not n.name.startswith("_")]
    silent = [f"{n.lineno}: {n.name}" for n in public if not ast.get_docstring(n)]
    assert not silent
    assert not tree.body or ast.get_docstring(tree)


def test_the_changelog_knows_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    headings = re.findall(r"^## \[?([^\]\s]+)\]?", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert next(name for name in headings if name != "Unreleased") == version


def test_constraints_pin_each_direct_requirement_and_name_no_host() -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pinned = dict(re.findall(r"^([a-z0-9-]+)==([^\s+]+)$", text, re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = project["project"]["dependencies"] + project["build-system"]["requires"]
    wanted += chain.from_iterable(project["project"]["optional-dependencies"].values())
    assert {re.split(r"[\[<>=;]", requirement)[0] for requirement in wanted} <= set(pinned)
    assert pinned["torch"] == "2.13.0"
    assert "://" not in text
    assert len(pinned) == sum(not line.startswith("#") for line in text.splitlines())


@pytest.mark.parametrize("name", ["demo", "test", "check"])
def test_scripts_are_short_and_posix(name: str) -> None:
    script = ROOT / "scripts" / name
    assert script.stat().st_mode & 0o111
    assert len(script.read_text(encoding="utf-8").splitlines()) <= 20
    subprocess.run(["/bin/sh", "-n", script], check=True)


def test_ci_runs_the_developers_scripts_and_nothing_else() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert lines[-2:] == ["scripts/check", "scripts/test"]
    assert "set -eu" in lines
