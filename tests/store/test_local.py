"""LocalStore on real files, links, full devices and forbidden folders."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cabrank.errors import AccessError, ChangedError, ObjectMissingError, StorageError
from cabrank.store import canonical, open_store
from cabrank.store.local import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    opened = open_store(str(tmp_path))
    assert isinstance(opened, LocalStore)
    return opened


def _names(store: LocalStore, prefix: str) -> list[str]:
    return [info.uri for info in store.list(prefix)]


def _inside(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_plain_relative_and_home_paths_are_one(
    tmp_path: Path, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    want = f"file://{tmp_path}/a.csv"
    for path in ("a.csv", "./a.csv", "~/a.csv", f"{tmp_path}/a.csv", want, f"FILE://{tmp_path}/a.csv"):
        assert canonical(path) == want
        assert store.stat(path).uri == want
    assert canonical("sub/") == f"file://{tmp_path}/sub/"
    assert canonical("/") == "file:///"


@pytest.mark.parametrize("name", ["a b", "a%20b", "ü", "漢", "x=1", "q?#[*].csv"])
def test_names_are_taken_to_the_letter(tmp_path: Path, store: LocalStore, name: str) -> None:
    (tmp_path / name).write_bytes(b"12345")
    (info,) = store.list(f"{tmp_path}/")
    assert info.uri == f"file://{tmp_path}/{name}"
    assert (info.size, info.etag) == (5, None)
    assert store.read(info) == b"12345"
    assert store.read(info, 1, 3) == b"234"
    assert store.read(info, 3) == b"45"
    assert store.read(info, 5, 0) == b""


def test_listing_is_recursive_by_prefix_and_in_byte_order(tmp_path: Path, store: LocalStore) -> None:
    for name in ("a/b", "a.csv", "a-b", "aé", "az", ".meta/x", "b/c/d"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    here = f"file://{tmp_path}/"
    assert _names(store, here) == [here + n for n in (".meta/x", "a-b", "a.csv", "a/b", "az", "aé", "b/c/d")]
    assert _names(store, here + "a") == [here + n for n in ("a-b", "a.csv", "a/b", "az", "aé")]
    assert _names(store, here + "b/c") == [here + "b/c/d"]
    assert _names(store, here + "nothing/here/") == []
    assert _names(store, here + "a.csv/") == []


def test_links_are_followed_but_not_in_circles(tmp_path: Path, store: LocalStore) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/x").write_bytes(b"1")
    (tmp_path / "real/loop").symlink_to(tmp_path)
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").symlink_to(tmp_path / "real/x")
    os.mkfifo(tmp_path / "pipe")
    here = f"file://{tmp_path}/"
    assert _names(store, here) == [here + "file", here + "real/x"]
    store.put(here + "file", b"through")
    assert (tmp_path / "file").is_symlink()
    assert (tmp_path / "real/x").read_bytes() == b"through"


@pytest.mark.parametrize("change", [b"longer than before", b"same!"])
def test_a_changed_file_is_noticed(tmp_path: Path, store: LocalStore, change: bytes) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"12345")
    info = store.stat(str(path))
    path.write_bytes(change)
    os.utime(path, (1, 1))
    with pytest.raises(ChangedError, match="f was changed after it was planned"):
        store.read(info)
    with pytest.raises(ChangedError):
        store.read(info, 1, 2)


def test_bytes_past_the_end_are_an_error(tmp_path: Path, store: LocalStore) -> None:
    (tmp_path / "f").write_bytes(b"123")
    with pytest.raises(ChangedError, match="no bytes 1 to 9: it holds 3"):
        store.read(store.stat(str(tmp_path / "f")), 1, 8)


def test_what_is_not_there(tmp_path: Path, store: LocalStore) -> None:
    for uri in (f"{tmp_path}/no", str(tmp_path)):
        with pytest.raises(ObjectMissingError, match=str(tmp_path)):
            store.stat(uri)
    store.delete(f"{tmp_path}/no")


def test_a_writer_publishes_all_or_nothing(tmp_path: Path, store: LocalStore) -> None:
    path = tmp_path / "new/folder/f"
    with store.writer(str(path)) as file:
        file.write(b"one ")
        file.write(b"two")
        file.flush()
        assert not path.exists()
        assert _names(store, f"{tmp_path}/") == []  # the temp file is no object
    assert path.read_bytes() == b"one two"
    assert _inside(path.parent) == ["f"]

    def fail() -> None:
        with store.writer(str(path)) as file:
            file.write(b"x" * 3_000_000)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert path.read_bytes() == b"one two"
    assert _inside(path.parent) == ["f"]


def test_the_umask_decides_who_may_read(tmp_path: Path, store: LocalStore) -> None:
    before = os.umask(0o027)
    try:
        store.put(f"{tmp_path}/f", b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o640


def test_what_is_no_file_is_not_replaced(tmp_path: Path, store: LocalStore) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"")
    for name in ("pipe", "", "file/below"):
        with pytest.raises(StorageError, match=f"{tmp_path}/{name}.*choose another path|does not exist"):
            store.put(f"{tmp_path}/{name}", b"x")
    assert _inside(tmp_path) == ["file", "pipe"]


LIMITED = """
import resource, signal, sys
from cabrank.errors import StorageError
from cabrank.store import open_store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    open_store("/").put(sys.argv[1], b"x" * (8 << 20))
except StorageError as error:
    print(type(error).__name__, error.exit_code, error)
"""


def test_a_disk_that_takes_no_more_leaves_no_trace(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"old")
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "f")],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.stdout.startswith(f"StorageError 5 {tmp_path}/f: ")
    assert (tmp_path / "f").read_bytes() == b"old"
    assert _inside(tmp_path) == ["f"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")
def test_no_permission(tmp_path: Path, store: LocalStore) -> None:
    (tmp_path / "shut").mkdir(mode=0o500)
    with pytest.raises(AccessError, match="no permission"):
        store.put(f"{tmp_path}/shut/f", b"x")


def test_no_permission_as_the_system_says_it(
    tmp_path: Path, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr(os, "scandir", deny)
    with pytest.raises(AccessError, match=f"no permission for {tmp_path}: allow") as caught:
        list(store.list(f"{tmp_path}/"))
    assert isinstance(caught.value.__cause__, PermissionError)


def test_a_full_disk_as_the_system_says_it(tmp_path: Path, store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=f"{tmp_path}/f: the disk is full: free some space"):
        store.put(f"{tmp_path}/f", b"x")
    assert _inside(tmp_path) == []


def test_what_a_killed_writer_left_is_swept_and_a_living_ones_is_not(tmp_path: Path, store: LocalStore) -> None:
    code = f"""
import os, signal
from cabrank.store.local import LocalStore
with LocalStore().writer({str(tmp_path / "part")!r}) as file:
    file.write(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    (left,) = tmp_path.iterdir()
    stranger = tmp_path / ".cabrank-tmp-notes"
    stranger.write_text("mine")
    store.put(str(tmp_path / "a"), b"1")
    assert left.exists()  # young: its writer could be about to lock it
    for path in (left, stranger):
        os.utime(path, (0, 0))
    with LocalStore().writer(str(tmp_path / "b")):
        (living,) = set(tmp_path.glob(".cabrank-tmp-*")) - {left, stranger}
        assert not left.exists()
        os.utime(living, (0, 0))
        LocalStore().put(str(tmp_path / "c"), b"1")
        assert living.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".cabrank-tmp-notes", "a", "b", "c"]


@pytest.mark.parametrize("folder", ["/proc/nope", "file/below"])
def test_a_folder_that_cannot_be_made(tmp_path: Path, store: LocalStore, folder: str) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="cannot be made") as raised:
        store.put(str(tmp_path / folder / "part"), b"1")
    assert "does not exist" not in str(raised.value)
