"""`cabrank cache ls|verify|clear`, as a person runs it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cabrank.cli import main
from cabrank.data.cache import DecodedCache, part_key


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["cache", *argv])
    captured = capsys.readouterr()
    return int(end.value.code or 0), captured.out, captured.err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "[b] c"):
        key = part_key(f"s3://bucket/{name}.csv", "etag", ("label", "x"), "raise", "float64", "pyarrow 26")
        DecodedCache(tmp_path / "cache", 10**9).put(key, np.ones((1234, 2)), {})
    return tmp_path / "cache"


def damage(folder: Path) -> Path:
    path = min(folder.glob("*.cabrank"))
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    return path


def test_ls_shows_the_entries_and_their_sum(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "ls", "--cache-dir", str(folder))
    assert code == 0
    lines = out.splitlines()
    entry = next(line for line in lines if line.startswith("  s3://bucket/[b] c.csv "))
    assert "1,234" in entry
    assert "s ago" in entry
    size = sum(path.stat().st_size for path in folder.glob("*.cabrank"))
    assert f"2 entries, {size:,} bytes" in lines[-1]


def test_verify_is_quiet_about_sound_entries(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "verify", "--cache-dir", str(folder))
    assert (code, "all sound" in out) == (0, True)


def test_verify_removes_damage_and_exits_3(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = damage(folder)
    code, out, err = run(capsys, "verify", "--cache-dir", str(folder))
    assert code == 3
    assert str(path) in out
    assert "s3://bucket/" in out
    assert "1 of 2 entries" in err
    assert not path.exists()
    assert run(capsys, "verify", "--cache-dir", str(folder))[0] == 0


def test_clear_says_how_many_bytes_it_freed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = sum(path.stat().st_size for path in folder.glob("*.cabrank"))
    code, out, _ = run(capsys, "clear", "--cache-dir", str(folder))
    assert (code, f"{size:,} bytes freed" in out) == (0, True)
    assert not list(folder.glob("*.cabrank"))


def test_clear_refuses_a_folder_that_is_no_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "precious.csv").write_text("a,b\n")
    code, _, err = run(capsys, "clear", "--cache-dir", str(tmp_path))
    assert code == 2
    assert "is not a cache of cabrank" in err
    assert (tmp_path / "precious.csv").exists()


def test_without_a_folder_it_is_the_user_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code, out, _ = run(capsys, "ls")
    assert (code, f"{tmp_path}/cabrank: there is no cache here" in out) == (0, True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("action", ["ls", "verify", "clear"])
def test_what_cannot_be_a_cache_is_said(action: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    for folder, said in (("file", "no folder"), ("none", "without a cache"), ("", "must not be empty")):
        code, _, err = run(
            capsys, action, "--cache-dir", folder and (folder if folder == "none" else f"{tmp_path}/file")
        )
        assert (code, said in err) == (2, True), err
    assert (tmp_path / "file").read_text() == "mine"


def test_an_unknown_action_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "purge")
    assert code == 2
    assert "ls" in err
    assert "purge" in err
