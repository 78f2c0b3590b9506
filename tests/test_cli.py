"""The command line as a user meets it: real processes, their exit codes, and which stream says what."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cabrank.cli import GROUPS, VERBS
from cabrank.local.store import EmbeddedStore

VERB_NAMES = [config.verb for config in VERBS]


def cabrank(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cabrank", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def _with_verb(body: str) -> list[str]:
    """A process of the real command line in which the verb `devices` runs `body`."""
    code = f"""
import os, sys, types
from cabrank import errors
def run(config):
    {body}
module = types.ModuleType("cabrank.commands.devices")
module.run = run
sys.modules[module.__name__] = module
from cabrank.cli import main
main(["devices"])
"""
    return [sys.executable, "-c", code]


@pytest.mark.parametrize("verb", VERB_NAMES)
def test_each_verb_has_help_and_each_flag_a_text(verb: str) -> None:
    done = cabrank(*verb.split(), "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: cabrank {verb} ")
    assert done.stderr == ""
    config = next(config for config in VERBS if config.verb == verb)
    words = " ".join(done.stdout.split())
    for name, field in config.model_fields.items():
        assert field.description, name
        assert field.description.split()[0] in words
        assert (config.flag(name) in done.stdout) != config.is_argument(name)


def test_help_without_a_verb_lists_every_verb_in_full() -> None:
    done = cabrank("--help")
    assert done.returncode == 0
    words = " ".join(done.stdout.split())
    for config in VERBS:
        group = config.verb.partition(" ")[0]
        shown = words if group == config.verb else " ".join(cabrank(group, "--help").stdout.split())
        assert f"{config.verb.removeprefix(group).strip() or group} {config.__doc__}" in shown
    for group, about in GROUPS.items():
        assert f"{group} {about}" in words


def test_version_is_the_packages() -> None:
    from importlib.metadata import version

    assert cabrank("--version").stdout == f"cabrank {version('cabrank')}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nope"], ["'nope'", *(verb.split()[0] for verb in VERB_NAMES)]),
        (["features", "nope"], ["'nope'", "engineer", "audit"]),
        (["devices", "--nope"], ["--nope", "cabrank devices --help"]),
        (["devices", "stray"], ["stray"]),
        (["sample"], ["dest"]),
        (["baseline", "--data", "x"], ["--out"]),
        (
            ["baseline", "--data", "x", "--out", "y", "--batch-size", "-4"],
            ["--batch-size", "'-4'", "greater than or equal to 1"],
        ),
        (
            ["baseline", "--data", "x", "--out", "y", "--batch-size", "0"],
            ["--batch-size", "'0'", "greater than or equal to 1"],
        ),
        (["baseline", "--data", "x", "--out", "y", "--batch-size", "1.5"], ["--batch-size", "'1.5'", "whole number"]),
        (["baseline", "--data", "x", "--out", "y", "--dtype", "half"], ["--dtype", "'half'", "'float64' or 'float32'"]),
        (["baseline", "--data", "x", "--out", "y", "--learning-rate", "nan"], ["--learning-rate", "'nan'"]),
        (
            ["baseline", "--data", "x", "--out", "y", "--nulls", "maybe"],
            ["--nulls", "'maybe'", "raise", "drop", "fill="],
        ),
        (["sample", "x", "--rows", "many"], ["--rows", "'many'", "whole number"]),
        (["sample", "x", "--seed", "-1"], ["--seed", "'-1'", "greater than or equal to 0"]),
        (["sample", "x", "--rows", "1_000"], ["--rows", "'1_000'", "whole number"]),
        (["sample", "x", "--seed", "9" * 23], ["--seed", "less than 9223372036854775808"]),
        (["sample", ""], ["dest", "must not be empty"]),
        (["baseline", "--data", "x", "--out", " "], ["--out", "must not be empty"]),
        (["baseline", "--data", "x", "--out", "y", "--learning-rate", "1_0"], ["--learning-rate", "'1_0'", "number"]),
        (["sample", "https://web.invalid/x"], ["https://web.invalid/x", "only read"]),
        (["baseline", "--data", "x", "--out", "https://web.invalid/x"], ["https://web.invalid/x", "only read"]),
        (["devices", "--bench", "--out", "https://web.invalid/x"], ["https://web.invalid/x", "only read"]),
        (["sample", "s4://b/x"], ["s4://b/x", "s3://", "https://"]),
        (["sample", "s3://B_ad!/x"], ["'B_ad!'", "3 to 63"]),
        (["devices", "--max-exponent", "31"], ["--max-exponent", "'31'", "30"]),
    ],
)
def test_wrong_usage_exits_2_and_says_what_is_allowed(arguments: list[str], said: list[str], tmp_path: Path) -> None:
    done = cabrank(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for word in said:
        assert word in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("ConfigError", 2),
        ("NoDataError", 3),
        ("SchemaError", 3),
        ("DivergedError", 3),
        ("MissingBucketError", 5),
        ("UnreachableError", 5),
        ("CabrankError", 70),
    ],
)
def test_our_errors_leave_as_one_line_and_their_code(error: str, code: int) -> None:
    done = subprocess.run(
        _with_verb(f"raise errors.{error}('s3://b/k: what went wrong')"), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "cabrank: s3://b/k: what went wrong\n")


@pytest.mark.parametrize("body", ["1 / 0", "import no_such_package"])
def test_a_fault_of_ours_exits_70_with_its_traceback(body: str) -> None:
    done = subprocess.run(_with_verb(body), capture_output=True, text=True, check=False)
    assert done.returncode == 70
    assert "Traceback" in done.stderr


def test_an_absent_extra_is_named() -> None:
    body = "sys.modules['torch'] = None; import torch.nn"
    done = subprocess.run(_with_verb(body), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "cabrank: this verb needs torch: pip install 'cabrank[train]'\n")


def test_a_folder_without_parts_exits_3_and_names_it(tmp_path: Path) -> None:
    (tmp_path / "_SUCCESS").touch()
    for arguments in (["shard", str(tmp_path)], ["baseline", "--data", str(tmp_path), "--out", str(tmp_path / "run")]):
        done = cabrank(*arguments)
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr.startswith("cabrank: ")
        assert str(tmp_path) in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["_SUCCESS"]


def test_a_missing_bucket_exits_5_and_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedStore() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        done = cabrank("shard", "s3://no-such-bucket/csv")
    assert (done.returncode, done.stdout) == (5, "")
    assert "s3://no-such-bucket" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_verb_cleans_up_and_says_so(number: signal.Signals) -> None:
    command = _with_verb("""
    try:
        print('ready', flush=True); sys.stdin.read()
    finally:
        print('cleaned up', flush=True)""")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        printed, errors = process.communicate()
    assert process.returncode == 128 + number
    assert (printed, errors) == ("cleaned up\n", f"cabrank: stopped by {number.name}\n")


def test_a_reader_that_stops_listening_gets_no_traceback() -> None:
    command = _with_verb("[print('x' * 1000) for _ in range(10_000)]")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "x" * 1000 + "\n"
        process.stdout.close()
        errors = process.stderr.read()
    assert process.returncode == 141
    assert errors == ""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written(unbuffered: str) -> None:
    command = _with_verb("print('x' * 1000)")
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    assert done.returncode == 5
    assert len(done.stderr.splitlines()) == 1
    assert "No space left on device" in done.stderr


def test_output_that_is_closed() -> None:
    shell = ["/bin/sh", "-c", 'exec "$@" >&-', "sh"]
    command = _with_verb("print('x'); os.write(2, str(sys.stdout.isatty()).encode())")
    done = subprocess.run([*shell, *command], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "False")


def test_the_installed_script_is_the_module() -> None:
    script = Path(sys.executable).parent / "cabrank"
    assert os.access(script, os.X_OK)
    assert (
        subprocess.run([script, "--help"], capture_output=True, text=True, check=True).stdout
        == cabrank("--help").stdout
    )
