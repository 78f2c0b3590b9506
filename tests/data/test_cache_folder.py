"""The folder's borders: where it is by default, and that nothing but ours is ever removed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

from cabrank.data.cache import DecodedCache, Key, part_key
from cabrank.data.cache_care import clear, entries, verify
from cabrank.data.cache_folder import CacheFolder, default_folder
from cabrank.errors import ConfigError

HEX = "0123456789abcdef" * 4


def stored(folder: Path, name: str = "a") -> Key:
    key = part_key(f"s3://bucket/{name}.csv", "etag", ("label", "x"), "raise", "float64", "pyarrow 26")
    assert key is not None
    assert DecodedCache(folder, 10**9).put(key, np.full((10, 2), float(ord(name))), {})
    return key


@pytest.fixture
def no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose folders cannot be made, for root as well: a file lies in its place. Returns the temporary folder."""
    (tmp_path / "home").write_text("")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    return tmp_path / "tmp"


def test_the_default_is_this_user_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_folder() == tmp_path / "xdg" / "cabrank"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert default_folder() == tmp_path / ".cache" / "cabrank"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_folder() == tmp_path / ".cache" / "cabrank"
    assert not list(tmp_path.iterdir()), "asking makes nothing"


def test_without_a_home_it_is_a_private_temporary_folder(no_home: Path) -> None:
    folder = default_folder()
    assert folder == no_home / f"cabrank-cache-{os.geteuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert default_folder() == folder


def test_a_temporary_folder_that_somebody_else_planted_is_refused(no_home: Path, tmp_path: Path) -> None:
    (no_home / f"cabrank-cache-{os.geteuid()}").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="XDG_CACHE_HOME"):
        default_folder()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_a_temporary_folder_of_another_user_is_refused(no_home: Path) -> None:
    planted = no_home / f"cabrank-cache-{os.geteuid()}"
    planted.mkdir()
    os.chown(planted, 12345, 12345)
    with pytest.raises(ConfigError, match="somebody else"):
        default_folder()


def test_clear_removes_ours_and_nothing_else(tmp_path: Path) -> None:
    folder, outside = tmp_path / "cache", tmp_path / "outside"
    key = stored(folder)
    outside.mkdir()
    (outside / f"{HEX}.cabrank").write_text("outside")
    theirs = ["notes.txt", f"{HEX}.cabrank.bak", f"{HEX.upper()}.cabrank", f"{HEX[1:]}.cabrank", "x.cabrank-lock"]
    for name in theirs:
        (folder / name).write_text("theirs")
    (folder / f"{HEX}.cabrank").symlink_to(outside / f"{HEX}.cabrank")
    (folder / f"{HEX[::-1]}.cabrank").symlink_to(outside)
    (folder / f"{'0' * 64}.cabrank").mkdir()
    (folder / f"{'0' * 64}.cabrank" / f"{HEX}.cabrank").write_text("inside a folder")
    (folder / "sub").symlink_to(outside)
    temp = folder / f"{HEX}.{'a' * 16}.cabrank-temp"
    temp.write_bytes(b"left by a killed process")
    entry_bytes = (folder / f"{key.digest}.cabrank").stat().st_size
    links = sum(path.lstat().st_size for path in folder.iterdir() if path.is_symlink() and path.name != "sub")
    assert clear(folder) == entry_bytes + 24 + links
    left = {path.name for path in folder.iterdir()}
    assert left == {*theirs, "sub", f"{'0' * 64}.cabrank", ".cabrank-cache"}
    assert (outside / f"{HEX}.cabrank").read_text() == "outside"
    assert (folder / f"{'0' * 64}.cabrank" / f"{HEX}.cabrank").exists()
    assert clear(folder) == 0


def test_clear_leaves_a_fill_in_progress(tmp_path: Path) -> None:
    key = stored(tmp_path)
    other = Key(HEX, "s3://bucket/b.csv")
    cache = DecodedCache(tmp_path, 10**9)
    with cache.begin(other, 10, 2, "float64") as fill:
        fill.add(np.ones((10, 2)))
        clear(tmp_path)
        assert fill.commit({})
    assert cache.get(other) is not None
    assert cache.get(key) is None


@pytest.mark.parametrize("action", [clear, verify])
def test_a_folder_that_is_no_cache_is_refused(tmp_path: Path, action: object) -> None:
    (tmp_path / f"{HEX}.cabrank").write_text("somebody's")
    assert callable(action)
    with pytest.raises(ConfigError, match=r"\.cabrank-cache is missing"):
        action(tmp_path)
    assert (tmp_path / f"{HEX}.cabrank").exists()


def test_an_absent_folder_is_an_empty_cache(tmp_path: Path) -> None:
    assert (entries(tmp_path / "no"), verify(tmp_path / "no"), clear(tmp_path / "no")) == ([], [], 0)
    assert not (tmp_path / "no").exists()
    assert (verify(tmp_path), clear(tmp_path)) == ([], 0), (
        "and so is an empty one, left by who was killed while making it"
    )


@pytest.mark.parametrize(
    "name", ["../x", "notes.txt", f"../{HEX}.cabrank", f"{HEX}.cabrank/..", f"{HEX}.cabrank\n", ""]
)
def test_names_that_are_not_ours_cannot_be_removed(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="not a name of the cache"):
        CacheFolder(tmp_path).remove(name)


def test_eviction_does_not_follow_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(bytes(10_000))
    folder = tmp_path / "cache"
    key = stored(folder)
    (folder / f"{HEX}.cabrank").symlink_to(outside)
    os.utime(folder / f"{HEX}.cabrank", (1, 1), follow_symlinks=False)
    cache = DecodedCache(folder, (folder / f"{key.digest}.cabrank").stat().st_size + 8400)
    other = part_key("s3://bucket/b.csv", "etag", ("label", "x"), "raise", "float64", "pyarrow 26")
    assert cache.put(other, np.ones((10, 2)), {})
    assert not os.path.lexists(folder / f"{HEX}.cabrank")
    assert outside.stat().st_size == 10_000


def test_locks_and_leftovers_that_are_links_are_not_followed(tmp_path: Path) -> None:
    folder, outside = tmp_path / "cache", tmp_path / "outside"
    key = stored(folder)
    outside.mkdir()
    (outside / "old").write_text("old")
    os.utime(outside / "old", (1, 1))
    other = Key(HEX, "s3://bucket/b.csv")
    for name in (f"{HEX}.cabrank-lock", "room.cabrank-lock"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(outside / "made")
    (folder / f"{HEX}.{'b' * 16}.cabrank-temp").symlink_to(outside / "old")
    cache = DecodedCache(folder, 10**9)
    with cache.filling(other) as entry:
        assert entry is None
        assert cache.put(other, np.ones((10, 2)), {})
    assert [path.name for path in outside.iterdir()] == ["old"]
    assert (outside / "old").read_text() == "old"
    assert not list(folder.glob("*-temp"))
    assert cache.get(key) is not None


def test_verify_names_and_removes_what_is_damaged(tmp_path: Path) -> None:
    good, bad, beheaded = (stored(tmp_path, name) for name in "abc")
    path = tmp_path / f"{bad.digest}.cabrank"
    content = bytearray(path.read_bytes())
    content[4100] ^= 8
    path.write_bytes(content)
    (tmp_path / f"{beheaded.digest}.cabrank").write_bytes(b"")
    assert [e.fault != "" for e in entries(tmp_path)] == [True, False, False], "a listing looks at no matrix"
    found = {entry.path.name: entry for entry in verify(tmp_path)}
    assert "checksum" in found[path.name].fault
    assert found[path.name].uri == "s3://bucket/b.csv"
    assert found[f"{beheaded.digest}.cabrank"].fault
    assert found[f"{good.digest}.cabrank"].fault == ""
    assert found[f"{good.digest}.cabrank"].rows == 10
    assert [entry.uri for entry in verify(tmp_path)] == ["s3://bucket/a.csv"]


def test_a_large_folder_is_not_looked_through_for_each_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cabrank.data.cache_folder.QUICK_SCAN_SECONDS", 0.0)
    looks = []
    look = CacheFolder._look

    def slow(self: CacheFolder) -> object:
        looks.append(1)
        return look(self)

    monkeypatch.setattr(CacheFolder, "_look", slow)
    clock = iter(range(1000))
    monkeypatch.setattr("cabrank.data.cache_folder.time.monotonic", lambda: next(clock))
    files = CacheFolder(tmp_path)
    for _ in range(12):
        files.scan()  # each look takes one tick of this clock, each question another
    assert 1 <= len(looks) <= 2
