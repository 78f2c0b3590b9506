"""`cabrank sample` on real files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cabrank.commands import sample
from cabrank.config import SampleConfig
from cabrank.errors import ConfigError


def test_writes_parts_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample.run(SampleConfig(dest=str(tmp_path / "csv"), rows=1000, parts=3, seed=4))
    files = sorted((tmp_path / "csv").glob("part-*"))
    assert (tmp_path / "csv" / "_SUCCESS").read_bytes() == b""
    assert [file.name[:11] for file in files] == ["part-00000-", "part-00001-", "part-00002-"]
    assert [file.read_bytes().count(b"\n") - 1 for file in files] == [333, 333, 334]
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["event"], said["rows"], said["parts"]) == ("sample", 1000, 3)
    assert said["bytes"] == sum(file.stat().st_size for file in files)


def test_same_seed_same_bytes_through_any_spelling_of_the_folder(tmp_path: Path) -> None:
    for dest in (f"{tmp_path}/a", f"file://{tmp_path}/b/"):
        sample.run(SampleConfig(dest=dest, rows=100, parts=2, seed=9))
    a, b = ({file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in "ab")
    assert a == b


def test_another_sample_is_not_mixed_in(tmp_path: Path) -> None:
    sample.run(SampleConfig(dest=str(tmp_path), rows=10, parts=1, seed=1))
    with pytest.raises(ConfigError, match="part-00000-"):
        sample.run(SampleConfig(dest=str(tmp_path), rows=10, parts=1, seed=2))
    assert len(list(tmp_path.glob("part-*"))) == 1


def test_a_failed_run_leaves_no_half_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cabrank.data import sample as data

    original = data.trips

    def failing(rows: int, seed: int, part: int) -> Iterator[tuple[int, bytes]]:
        yield from original(rows, seed, part)
        if part == 1:
            raise RuntimeError("pulled the plug")

    monkeypatch.setattr(data, "trips", failing)
    with pytest.raises(RuntimeError, match="pulled the plug"):
        sample.run(SampleConfig(dest=str(tmp_path), rows=100, parts=3, seed=1))
    assert [file.name[:11] for file in tmp_path.iterdir()] == ["part-00000-"]


def test_what_is_replaced_is_said_and_an_unfinished_sample_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from cabrank.data import sample as data

    original = data.trips
    sample.run(SampleConfig(dest=str(tmp_path), rows=100, parts=2))
    assert not caplog.messages

    def failing(rows: int, seed: int, part: int) -> Iterator[tuple[int, bytes]]:
        raise KeyboardInterrupt
        yield from original(rows, seed, part)

    with monkeypatch.context() as patch:
        patch.setattr(data, "trips", failing)
        with pytest.raises(KeyboardInterrupt):
            sample.run(SampleConfig(dest=str(tmp_path), rows=300, parts=2))
    assert sorted(path.name[:11] for path in tmp_path.iterdir()) == ["part-00000-", "part-00001-"]
    sample.run(SampleConfig(dest=str(tmp_path), rows=300, parts=2))
    assert (tmp_path / "_SUCCESS").exists()
    replaced = [message.partition("replacing ")[2] for message in caplog.messages]
    assert replaced == ["an earlier sample, 2 parts of 0.0 MB", "an unfinished sample, 2 parts of 0.0 MB"]
