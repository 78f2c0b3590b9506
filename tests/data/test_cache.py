"""The cache under real processes, real locks, full disks and damaged files."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np
import pytest

import cabrank
from cabrank.data import cache_folder
from cabrank.data.cache import DecodedCache, Key, part_key
from cabrank.data.cache_care import verify
from cabrank.errors import ConfigError

ROWS = 1000
PART_BYTES = ROWS * 3 * 8
ENTRY_BYTES = PART_BYTES + 2 * 4096  # what one part counts for while it is written


def key(name: str, pin: str = "etag") -> Key:
    made = part_key(f"s3://bucket/{name}.csv", pin, ("label", "x", "y"), "raise", "float64", "pyarrow 26")
    assert made is not None
    return made


def matrix(name: str) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.random.default_rng(list(name.encode())).random((ROWS, 3))


def entry_path(cache: DecodedCache, name: str) -> Path:
    return cache.folder / f"{key(name).digest}.cabrank"


def age(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2, follow_symlinks=False)


def total(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.iterdir())


@pytest.fixture
def cache(tmp_path: Path) -> DecodedCache:
    return DecodedCache(tmp_path / "cache", 10**9)


PRELUDE = """
import sys, os, numpy as np
from pathlib import Path
from cabrank.data.cache import DecodedCache, part_key
def key(name, pin="etag"):
    return part_key(f"s3://bucket/{name}.csv", pin, ("label", "x", "y"), "raise", "float64", "pyarrow 26")
def matrix(name):
    return np.random.default_rng(list(name.encode())).random((1000, 3))
folder = Path(sys.argv[1])
def say(word):
    print(word, flush=True)
def hear():
    sys.stdin.readline()
"""


@contextmanager
def process(folder: Path, code: str) -> Iterator[subprocess.Popen[str]]:
    """Another process on the same folder; killed at the end at the latest."""
    environment = {**os.environ, "PYTHONPATH": str(Path(cabrank.__file__).parents[1])}
    command = [sys.executable, "-c", PRELUDE + code, str(folder)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe, stderr=pipe) as child:
        try:
            yield child
        finally:
            child.kill()


def out(child: subprocess.Popen[str]) -> IO[str]:
    assert child.stdout is not None
    return child.stdout


def tell(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def test_what_was_put_comes_back(cache: DecodedCache) -> None:
    assert cache.get(key("a")) is None
    assert cache.put(key("a"), matrix("a"), {"rows": 1003, "dropped": {"empty": 3}})
    entry = cache.get(key("a"))
    assert entry is not None
    assert np.array_equal(entry.matrix, matrix("a"))
    assert entry.facts == {"rows": 1003, "dropped": {"empty": 3}}
    counted = cache.counters
    assert (counted.hits, counted.misses, counted.stored, counted.streamed) == (1, 1, 1, 0)
    assert (counted.bytes_read, counted.bytes_stored) == (PART_BYTES, PART_BYTES)


def test_a_change_in_place_stays_out_of_the_cache(cache: DecodedCache) -> None:
    torch = pytest.importorskip("torch")
    cache.put(key("a"), matrix("a"), {})
    first = cache.get(key("a"))
    assert first is not None
    tensor = torch.from_numpy(first.matrix)  # a warning here is an error
    tensor.mul_(0)
    second = cache.get(key("a"))
    assert second is not None
    assert not first.matrix.any()
    assert np.array_equal(second.matrix, matrix("a"))


def test_what_has_no_key_leaves_no_trace(cache: DecodedCache) -> None:
    assert cache.get(None) is None
    with cache.filling(None) as entry:
        assert entry is None
        assert not cache.put(None, matrix("a"), {})
    assert not cache.folder.exists()


def test_blocks_become_one_entry_only_when_committed(cache: DecodedCache) -> None:
    with cache.begin(key("a"), ROWS, 3, "float64") as fill:
        fill.add(matrix("a")[:400])
        assert cache.get(key("a")) is None
        fill.add(matrix("a")[400:])
        assert fill.commit({"rows": ROWS})
    entry = cache.get(key("a"))
    assert entry is not None
    assert np.array_equal(entry.matrix, matrix("a"))


@pytest.mark.parametrize("interrupted", [False, True])
def test_what_is_not_committed_leaves_no_trace(cache: DecodedCache, interrupted: bool) -> None:
    with suppress(KeyboardInterrupt), cache.begin(key("a"), ROWS, 3, "float64") as fill:
        fill.add(matrix("a"))
        assert list(cache.folder.glob("*-temp"))
        if interrupted:
            raise KeyboardInterrupt
    assert cache.get(key("a")) is None
    assert not list(cache.folder.glob("*-temp"))


def test_matrices_of_another_kind_are_refused(cache: DecodedCache) -> None:
    with pytest.raises(TypeError, match="int64"):
        cache.put(key("a"), np.ones((2, 3), np.int64), {})
    with cache.begin(key("a"), 2, 3, "float64") as fill:
        for wrong in (np.ones((2, 4)), np.ones((2, 3), np.float32), np.ones((3, 2)).T, np.ones(3)):
            with pytest.raises(TypeError):
                fill.add(wrong)
    assert not list(cache.folder.glob("*.cabrank*p"))


@pytest.mark.parametrize("fault", ["truncated", "flipped", "other part", "link", "pipe"])
def test_a_damaged_entry_is_dropped_reported_and_replaced(
    cache: DecodedCache, tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    cache.put(key("a"), matrix("a"), {})
    cache.put(key("b"), matrix("b"), {})
    path = entry_path(cache, "a")
    content = bytearray(path.read_bytes())
    outside = tmp_path / "outside"
    outside.write_bytes(content)
    match fault:
        case "truncated":
            os.truncate(path, 5000)
        case "flipped":
            content[10_000] ^= 1
            path.write_bytes(content)
        case "other part":
            shutil.copy(entry_path(cache, "b"), path)
        case "link":
            path.unlink()
            path.symlink_to(outside)
        case "pipe":
            path.unlink()
            os.mkfifo(path)
    with caplog.at_level(logging.WARNING, "cabrank"):
        assert cache.get(key("a")) is None
    assert [
        r.getMessage() for r in caplog.records if str(path) in r.getMessage() and "s3://bucket/a.csv" in r.getMessage()
    ]
    assert cache.counters.corrupt == 1
    assert not os.path.lexists(path)
    assert outside.exists()
    assert cache.put(key("a"), matrix("a"), {})
    again = DecodedCache(cache.folder).get(key("a"))
    assert again is not None
    assert np.array_equal(again.matrix, matrix("a"))


def test_damage_is_noticed_by_a_process_that_had_checked_before(cache: DecodedCache) -> None:
    cache.put(key("a"), matrix("a"), {})
    assert cache.get(key("a")) is not None
    path = entry_path(cache, "a")
    with path.open("rb+") as file:
        file.seek(9_999)
        file.write(b"!!")
    os.utime(path)  # as a write at a later tick of the clock would
    assert cache.get(key("a")) is None
    assert cache.counters.corrupt == 1


def test_a_process_killed_in_a_fill_leaves_no_entry_and_is_swept(cache: DecodedCache) -> None:
    code = """
fill = DecodedCache(folder).begin(key("a"), 1000, 3, "float64")
fill.add(matrix("a")); say("filling"); hear()
"""
    with process(cache.folder, code) as child:
        assert out(child).readline() == "filling\n"
        (temp,) = cache.folder.glob("*-temp")
        age(temp, 3600)
        assert cache.put(key("b"), matrix("b"), {})
        assert temp.exists(), "its writer lives, however old it is"
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert cache.get(key("a")) is None
    age(temp, 30)
    assert cache.put(key("c"), matrix("c"), {})
    assert temp.exists(), "it could be one that is about to be locked"
    age(temp, 90)
    assert cache.put(key("a"), matrix("a"), {})
    assert not temp.exists()
    assert cache.get(key("a")) is not None


def test_a_process_killed_at_any_moment_leaves_no_wrong_entry(cache: DecodedCache) -> None:
    code = """
cache = DecodedCache(folder, 3 * (24000 + 8192))
say("ready")
while True:
    for name in "abcdef":
        cache.put(key(name), matrix(name), {})
"""
    for milliseconds in (1, 3, 7, 20, 45):
        with process(cache.folder, code) as child:
            assert out(child).readline() == "ready\n"
            with suppress(subprocess.TimeoutExpired):
                child.wait(milliseconds / 1000)
            child.kill()
            child.wait()
        assert not [entry for entry in verify(cache.folder) if entry.fault]
    for name in "abcdef":
        entry = cache.get(key(name))
        assert entry is None or np.array_equal(entry.matrix, matrix(name))
    assert cache.counters.corrupt == 0


def test_two_processes_fill_one_entry_once(cache: DecodedCache) -> None:
    code = """
cache = DecodedCache(folder, 10**9)
with cache.filling(key("a")) as entry:
    assert entry is None
    say("parsing"); hear()
    cache.put(key("a"), matrix("a"), {"by": "child"})
"""
    with process(cache.folder, code) as child:
        assert out(child).readline() == "parsing\n"
        found: list[object] = []

        def wait() -> None:
            with cache.filling(key("a")) as entry:
                found.append(entry and entry.facts)

        waiting = threading.Thread(target=wait)
        waiting.start()
        tell(child)
        waiting.join(30)
        assert child.wait(30) == 0
    assert found == [{"by": "child"}]
    assert (cache.counters.hits, cache.counters.misses, cache.counters.stored) == (1, 0, 0)
    assert not list(cache.folder.glob(f"{key('a').digest}*-lock"))


def test_a_filler_that_is_killed_or_slow_holds_nobody_up(cache: DecodedCache) -> None:
    code = """
with DecodedCache(folder).filling(key("a")):
    say("parsing"); hear()
"""
    with process(cache.folder, code) as child:
        assert out(child).readline() == "parsing\n"
        with cache.filling(key("a"), wait_seconds=0.01) as entry:
            assert entry is None
        child.kill()
        child.wait()
        with cache.filling(key("a"), wait_seconds=60) as entry:
            assert entry is None
            assert cache.put(key("a"), matrix("a"), {})
    assert cache.get(key("a")) is not None


def test_those_who_waited_in_vain_parse_side_by_side(cache: DecodedCache, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, waiting = threading.Barrier(2, timeout=60), threading.Semaphore(0)
    wait_for_lock = cache_folder._wait_for_lock

    def announced(file: BinaryIO, kind: int, seconds: float) -> bool:
        if kind == fcntl.LOCK_SH:
            waiting.release()
        return wait_for_lock(file, kind, seconds)

    monkeypatch.setattr(cache_folder, "_wait_for_lock", announced)
    with process(cache.folder, 'with DecodedCache(folder).filling(key("a")): say("in"); hear()') as child:
        assert out(child).readline() == "in\n"

        def wait() -> None:
            with cache.filling(key("a")):
                inside.wait()  # both are inside at once

        threads = [threading.Thread(target=wait) for _ in range(2)]
        for thread in threads:
            thread.start()
        assert waiting.acquire(timeout=60)
        assert waiting.acquire(timeout=60)  # both have come too late to be the first
        tell(child)
        for thread in threads:
            thread.join(60)
    assert not inside.broken


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_without_locks_all_works(cache: DecodedCache, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def flock(*_: object) -> None:
        raise OSError(number, "no locks here")

    monkeypatch.setattr(fcntl, "flock", flock)
    with cache.filling(key("a")) as one, cache.filling(key("a")) as two:
        assert one is two is None
        with cache.begin(key("a"), ROWS, 3, "float64") as first, cache.begin(key("a"), ROWS, 3, "float64") as second:
            first.add(matrix("a"))
            second.add(matrix("a"))
            assert first.commit({})
            assert second.commit({})
    leftover = cache.folder / f"{key('b').digest}.{'0' * 16}.cabrank-temp"
    leftover.touch()
    age(leftover, 3600)
    cache.put(key("c"), matrix("c"), {})
    assert leftover.exists(), "without locks nothing says that its writer is dead"
    age(leftover, 100_000)
    cache.put(key("d"), matrix("d"), {})
    assert not leftover.exists()
    entry = cache.get(key("a"))
    assert entry is not None
    assert np.array_equal(entry.matrix, matrix("a"))


def test_the_limit_holds_and_the_plan_says_who_leaves(tmp_path: Path) -> None:
    cache = DecodedCache(tmp_path / "cache", 3 * ENTRY_BYTES)
    for epoch in ("abcdef" * 2, "abcdef"):
        cache.needed([key(name) for name in epoch])
        hits = cache.counters.hits
        for name in "abcdef":
            with cache.filling(key(name)) as entry:
                if entry is None:
                    cache.put(key(name), matrix(name), {})
                else:
                    assert np.array_equal(entry.matrix, matrix(name))
            assert total(cache.folder) <= cache.limit()
    assert cache.counters.hits - hits >= 3
    assert cache.counters.streamed >= 3


def test_what_is_mapped_outlives_its_eviction(tmp_path: Path) -> None:
    cache = DecodedCache(tmp_path / "cache", ENTRY_BYTES)
    cache.put(key("a"), matrix("a"), {})
    entry = DecodedCache(cache.folder).get(key("a"))
    assert cache.put(key("b"), matrix("b"), {})
    assert cache.counters.evicted == 1
    assert not entry_path(cache, "a").exists()
    assert entry is not None
    assert np.array_equal(entry.matrix, matrix("a"))


@pytest.mark.parametrize("limit", [0, PART_BYTES])
def test_what_is_larger_than_the_limit_is_streamed_with_one_notice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, limit: int
) -> None:
    cache = DecodedCache(tmp_path / "cache", limit)
    for name in "ab":
        with cache.filling(key(name)) as entry:
            assert entry is None
            assert not cache.put(key(name), matrix(name), {})
    assert len([r for r in caplog.records if "it is not cached" in r.getMessage()]) == 1
    assert cache.counters.streamed == 2
    assert not list(tmp_path.glob("cache/*.cabrank"))


def test_a_fast_and_a_slow_process_share_a_cache_that_is_too_small(tmp_path: Path) -> None:
    code = """
names, start, rounds = "abcdefgh", int(sys.stdin.readline()), int(sys.stdin.readline())
cache = DecodedCache(folder, 3 * (24000 + 8192))
order = [names[(start + i) % 8] for i in range(8)] * rounds
for place, name in enumerate(order):
    cache.needed([key(n) for n in order[place:place + 12]])
    with cache.filling(key(name)) as entry:
        if entry is None:
            values = matrix(name)
            cache.put(key(name), values, {})
        else:
            values = entry.matrix
    assert np.array_equal(values, matrix(name)), name
    temps_and_entries = 0
    for path in folder.iterdir():
        try:
            temps_and_entries += path.lstat().st_size
        except FileNotFoundError:
            pass
    assert temps_and_entries <= 4 * (24000 + 8192)  # not read at one moment: one may be counted under both its names
say(cache.counters.hits)
"""
    folder = tmp_path / "cache"
    with process(folder, code) as fast, process(folder, code) as slow:
        for child, start, rounds in ((fast, 0, 30), (slow, 5, 10)):
            assert child.stdin is not None
            child.stdin.write(f"{start}\n{rounds}\n")
            child.stdin.flush()
        for child in (fast, slow):
            hits, errors = child.communicate(timeout=60)
            assert child.returncode == 0, errors
            assert int(hits) > 0
    assert total(folder) <= 3 * ENTRY_BYTES


def test_disjoint_plans_do_not_thrash(tmp_path: Path) -> None:
    """Each of two processes streams rather than take what the other, at work now, has stored."""
    one, two = (DecodedCache(tmp_path / "cache", 2 * ENTRY_BYTES) for _ in range(2))
    one.needed([key(n) for n in "ab" * 4])
    two.needed([key(n) for n in "cd" * 4])
    for name, cache in (("a", one), ("c", two), ("b", one), ("d", two)) * 3:
        with cache.filling(key(name)) as entry:
            if entry is None:
                cache.put(key(name), matrix(name), {})
    assert (one.counters.hits, two.counters.hits) == (2, 2)
    assert (one.counters.evicted, two.counters.evicted) == (0, 0)


def test_the_default_limit_is_half_of_what_is_free_and_held(
    cache: DecodedCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.put(key("a"), matrix("a"), {})
    held = entry_path(cache, "a").stat().st_size
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9**9, 0, 10**6))
    assert DecodedCache(cache.folder).limit() == (10**6 + held) // 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    made = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place], capture_output=True, check=False
    )
    if not made or made.returncode:
        pytest.skip("mounting a small disk needs root")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_full_disk_means_streaming_with_one_warning(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = DecodedCache(small_disk / "cache", 10**9)
    stored = [cache.put(key(name), matrix(name), {}) for name in "abcde"]
    assert stored == [True, True, False, False, False]
    (warning,) = [r.getMessage() for r in caplog.records]
    assert "No space left on device" in warning
    assert "cache_dir" in warning
    assert not list(cache.folder.glob("*-temp"))
    entry = cache.get(key("b"))
    assert entry is not None
    assert np.array_equal(entry.matrix, matrix("b"))
    with cache.filling(key("c")) as nothing:
        assert nothing is None


@pytest.mark.parametrize("size", [10_000, 30_000])
def test_a_file_size_limit_means_streaming_with_one_warning(tmp_path: Path, size: int) -> None:
    code = f"""
import resource, logging
logging.basicConfig(format="%(message)s")
resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))
cache = DecodedCache(folder, 10**9)
for name in "abc":
    assert not cache.put(key(name), matrix(name), {{}})
assert cache.counters.streamed == 3
assert [p.name for p in folder.iterdir() if not p.name.endswith("-lock")] == [".cabrank-cache"]
"""
    with process(tmp_path / "cache", code) as child:
        _, errors = child.communicate(timeout=60)
    assert child.returncode == 0, errors
    assert errors.count("reading goes on without storing") == 1


@pytest.mark.parametrize("place", ["file/cache", "file", "/proc/cabrank"])
def test_a_folder_that_cannot_be_made_means_streaming_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    (tmp_path / "file").write_text("not a folder")
    cache = DecodedCache(tmp_path / place, 10**9)
    for name in "abc":
        with cache.filling(key(name)) as entry:
            assert entry is None
            assert not cache.put(key(name), matrix(name), {})
    (warning,) = [r.getMessage() for r in caplog.records]
    assert str(tmp_path / place) in warning
    assert cache.counters.streamed == 3


def test_a_cache_cleared_meanwhile_costs_one_entry(cache: DecodedCache) -> None:
    with cache.begin(key("a"), ROWS, 3, "float64") as fill:
        fill.add(matrix("a"))
        shutil.rmtree(cache.folder)
        assert not fill.commit({})
    assert cache.put(key("a"), matrix("a"), {})


def test_a_pickled_copy_and_a_forked_child_work(cache: DecodedCache) -> None:
    cache.put(key("a"), matrix("a"), {})
    copy = pickle.loads(pickle.dumps(cache))
    assert copy.limit() == cache.limit()
    assert copy.get(key("a")) is not None
    with cache._locked():  # as another thread could at the moment of the fork
        if (pid := os.fork()) == 0:
            signal.alarm(20)
            os._exit(0 if cache.get(key("a")) is not None and cache.put(key("b"), matrix("b"), {}) else 1)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert cache.get(key("b")) is not None


def test_threads_share_a_cache(cache: DecodedCache) -> None:
    def work() -> None:
        for name in "abcdefgh" * 3:
            with cache.filling(key(name)) as entry:
                if entry is None:
                    cache.put(key(name), matrix(name), {})
                else:
                    assert np.array_equal(entry.matrix, matrix(name))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    counted = cache.counters
    assert (counted.hits + counted.misses, counted.stored, counted.misses) == (96, 8, 8)


def test_a_uri_or_a_negative_limit_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="s3://bucket/cache"):
        DecodedCache("s3://bucket/cache")
    with pytest.raises(ConfigError, match="-1"):
        DecodedCache(tmp_path, -1)
