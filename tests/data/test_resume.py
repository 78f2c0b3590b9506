"""Interrupted and gone on: the same batches with the same ranks, and with any others exactly the unseen rows."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.utils.data import DataLoader

from cabrank import ObjectStorageDataset
from cabrank.data import dataset as module
from cabrank.errors import ConfigError, MetadataError

COUNTS = [50, 0, 7, 143, 30]
TOTAL = sum(COUNTS)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Parts whose rows are (number, number²), numbered through, with their counts."""
    row, table = 0, "id,count\n"
    for number, count in enumerate(COUNTS):
        lines = ["y,x", *(f"{i},{i * i}" for i in range(row, row + count))]
        (tmp_path / f"part-{number:05d}-a.csv").write_text("\n".join(lines) + "\n")
        table += f"{number},{count}\n" if count else ""
        row += count
    (tmp_path / ".meta/shards").mkdir(parents=True)
    (tmp_path / ".meta/shards/part-00000.csv").write_text(table)
    return str(tmp_path)


def make(folder: str, rank: int = 0, world: int = 1, size: int = 7, **options: Any) -> ObjectStorageDataset:
    return ObjectStorageDataset(
        folder, batch_size=size, worker=rank, replicas=world, weights=True, threads=1, **options
    )


def own(pair: Any) -> list[int]:
    """The numbers of a batch's own rows; all of its rows are checked."""
    values, weights = pair
    assert torch.equal(values[:, 1], values[:, 0] ** 2)
    return [int(v) for v, w in zip(values[:, 0], weights, strict=True) if w]


def take(ds: ObjectStorageDataset, count: int | None = None, worker: int = 0, workers: int = 1) -> list[list[int]]:
    """The numbers in the next `count` batches of a pass, or in all."""
    out: list[list[int]] = []
    with pytest.MonkeyPatch.context() as patch:
        if workers > 1:
            patch.setattr(module, "get_worker_info", lambda: SimpleNamespace(id=worker, num_workers=workers))
        stream = iter(ds)
        while count is None or len(out) < count:
            if (pair := next(stream, None)) is None:
                break
            out.append(own(pair))
        cast("Any", stream).close()
    return out


ORDERS: list[dict[str, Any]] = [{}, {"seed": 4}, {"seed": 4, "shuffle_window": 16}, {"seed": 4, "shuffle_window": 1000}]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("tail", ["drop", "pad", "uneven"])
@pytest.mark.parametrize("world", [1, 3])
def test_the_same_ranks_go_on_with_the_very_next_batch(
    folder: str, order: dict[str, Any], tail: Any, world: int
) -> None:
    for rank in range(world):
        whole = take(make(folder, rank, world, tail=tail, **order))
        for stop in (0, 1, 5, len(whole) - 1):
            first = make(folder, rank, world, tail=tail, **order)
            assert take(first, stop) == whole[:stop]
            state = json.loads(json.dumps(first.state_dict()))
            second = make(folder, rank, world, tail=tail, **order)
            second.load_state_dict(state)
            assert len(second) == len(whole) - stop
            assert take(second) == whole[stop:]
            assert len(second) == len(whole)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", range(6))
def test_any_other_ranks_workers_and_batches_read_exactly_the_unseen_rows(
    folder: str, order: dict[str, Any], seed: int
) -> None:
    draw = random.Random(seed)
    seen: Counter[int] = Counter()
    state: dict[str, Any] | None = None
    for leg in range(4):
        world, workers, size = draw.choice([1, 2, 3, 5]), draw.choice([1, 1, 2, 4]), draw.choice([1, 3, 8, 20])
        steps = draw.randint(0, 12) if leg < 3 else None
        for rank in range(world):
            own_steps = [None if steps is None else len(range(k, steps, workers)) for k in range(workers)]
            for worker in range(workers):
                ds = make(folder, rank, world, size, **order)
                if state is not None:
                    ds.load_state_dict(state)
                for batch in take(ds, own_steps[worker], worker, workers):
                    seen.update(batch)
        ds = make(folder, 0, world, size, **order)
        if state is not None:
            ds.load_state_dict(state)
        state = ds.state_dict(steps=steps, workers=workers) if steps is not None else None
        assert state is None or len(json.dumps(state)) < 2048
    assert seen == Counter(range(TOTAL))


def test_a_state_stays_small_after_many_legs(folder: str) -> None:
    state = None
    for leg in range(40):
        ds = make(folder, 0, 1 + leg % 3, 1 + leg % 2)
        if state:
            ds.load_state_dict(state)
        state = ds.state_dict(steps=1)
    assert len(json.dumps(state)) < 2048
    assert len(state["legs"]) == 39  # type: ignore[index]


@pytest.mark.parametrize("order", ORDERS)
def test_the_order_depends_on_seed_and_epoch_alone(folder: str, order: dict[str, Any]) -> None:
    def rows(world: int, workers: int, size: int, epoch: int = 0) -> list[int]:
        out = []
        for rank in range(world):
            for worker in range(workers):
                ds = make(folder, rank, world, size, tail="uneven", **order)
                ds.set_epoch(epoch)
                out += [row for batch in take(ds, None, worker, workers) for row in batch]
        return out

    alone = rows(1, 1, 7)
    assert sorted(alone) == list(range(TOTAL))
    assert rows(3, 1, 5) == rows(2, 3, 11) == rows(5, 2, 1000) == alone
    assert (rows(1, 1, 7, epoch=1) == alone) == (not order)
    if "shuffle_window" in order:
        moved = sum(abs(a - b) > 1 for a, b in pairwise(alone))
        assert moved > TOTAL // 2


def test_passes_move_the_epoch_on_and_a_finished_one_is_not_read_again(folder: str) -> None:
    ds = make(folder, seed=1)
    first, second = take(ds), take(ds)
    assert first != second
    assert ds.epoch == 2
    fresh = make(folder, seed=1)
    assert take(fresh) == first
    behind = fresh.state_dict()  # behind the last batch: the next epoch begins, and none is lost
    other = make(folder, seed=1)
    other.load_state_dict(behind)
    assert (other.epoch, take(other)) == (1, second)


@pytest.mark.parametrize("stop", [0, 3, 33, 100])
@pytest.mark.parametrize("order", ORDERS[:3])
def test_cycle_goes_on_within_its_round(folder: str, stop: int, order: dict[str, Any]) -> None:
    whole = take(make(folder, cycle=True, **order), 200)
    first = make(folder, cycle=True, **order)
    take(first, stop)
    second = make(folder, cycle=True, **order)
    second.load_state_dict(first.state_dict())
    assert take(second, 200 - stop) == whole[stop:]


def test_cycle_goes_on_with_other_ranks_on_the_rounds_unseen_rows(folder: str) -> None:
    state = None
    for rank in range(2):
        ds = make(folder, rank, 2, 10, cycle=True)
        take(ds, 30)  # 115 rows a lane: two rounds, and 70 rows of the third
        state = ds.state_dict()
    ds = make(folder, 0, 1, 9, cycle=True)
    ds.load_state_dict(state)  # type: ignore[arg-type]
    rest = [row for batch in take(ds, 10) for row in batch]
    assert rest == [*range(70, 115), *range(185, 230)]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 calls it
@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes")
def test_a_stateful_dataloader_saves_and_loads_it(folder: str) -> None:
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    for workers in (0, 2):

        def loader(workers: int = workers) -> Any:
            return loaders.StatefulDataLoader(make(folder, seed=3), batch_size=None, num_workers=workers)

        whole = [own(pair) for pair in loader()]
        assert sorted(row for batch in whole for row in batch) == list(range(TOTAL))
        first = loader()
        stream = iter(first)
        assert [own(next(stream)) for _ in range(9)] == whole[:9]
        state = first.state_dict()
        del stream
        second = loader()
        second.load_state_dict(state)
        assert [own(pair) for pair in second] == whole[9:]


@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes")
def test_a_loader_with_workers_goes_on(folder: str) -> None:
    def loader(ds: ObjectStorageDataset) -> Iterator[list[int]]:
        return (own(pair) for pair in DataLoader(ds, batch_size=None, num_workers=2))

    whole = list(loader(make(folder)))
    ds = make(folder)
    ds.load_state_dict(make(folder).state_dict(steps=11, workers=2))
    assert list(loader(ds)) == whole[11:]


SCRIPT = """
import sys
from cabrank import ObjectStorageDataset
folder, rank, world, size, state = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
import json
ds = ObjectStorageDataset(folder, batch_size=size, worker=rank, replicas=world, seed=2, shuffle_window=32, weights=True)
if state:
    ds.load_state_dict(json.loads(state))
for values, weights in ds:
    rows = [int(v) for v, w in zip(values[:, 0], weights) if w]
    print(json.dumps([rows, ds.state_dict()]), flush=True)
    sys.stdin.readline()  # one batch, one word from the test
"""


def test_killed_at_a_random_batch_and_gone_on_with_another_world(folder: str) -> None:
    """Two ranks are killed outright behind the same step; three others read the rest."""
    steps = random.Random(os.environ.get("PYTEST_RANDOM", "7")).randint(1, 9)
    seen, state = [], ""
    for rank in range(2):
        rows, state = _run(folder, [rank, 2, 10], "", steps)
        seen += rows
    for rank in range(3):
        rows, _ = _run(folder, [rank, 3, 16], state, None)
        seen += rows
    assert sorted(seen) == list(range(TOTAL))


def _run(folder: str, numbers: Sequence[int], state: str, steps: int | None) -> tuple[list[int], str]:
    """Rows of the first `steps` batches of a process that is then killed with SIGKILL, and its state behind them."""
    command = [sys.executable, "-c", SCRIPT, folder, *map(str, numbers), state]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    rows: list[int] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdin
        assert child.stdout
        taken = 0
        while taken != steps and (line := child.stdout.readline()):
            batch, here = json.loads(line)
            rows, state, taken = rows + batch, json.dumps(here), taken + 1
            if taken != steps:
                child.stdin.write("on\n")
                child.stdin.flush()
        if steps is not None:
            child.send_signal(signal.SIGKILL)
    assert child.returncode == (0 if steps is None else -signal.SIGKILL)
    return rows, state


def test_states_that_do_not_fit(folder: str, tmp_path: Path) -> None:
    ds = make(folder)
    good = ds.state_dict()
    for bad, words in (
        ({}, "no state of an ObjectStorageDataset"),
        ({**good, "version": 9}, "version is 9"),
        ({**good, "legs": "x"}, "no state of an ObjectStorageDataset"),
        ({**good, "here": [1, 2]}, "no state of an ObjectStorageDataset"),
    ):
        with pytest.raises(ConfigError, match=words):
            make(folder).load_state_dict(bad)
    with pytest.raises(MetadataError, match=r"other data, or in another order: seed was None and is 5"):
        make(folder, seed=5).load_state_dict(good)
    with (tmp_path / "part-00000-a.csv").open("a") as file:
        file.write("1000,1000000\n")
    (tmp_path / ".meta/shards/part-00000.csv").write_text("id,count\n0,51\n2,7\n3,143\n4,30\n")
    with pytest.raises(MetadataError, match=r"rows was 230 and is 231.*plan was") as caught:
        make(folder).load_state_dict(good)
    assert caught.value.exit_code == 3


def test_a_workers_own_state_is_loaded_there_only(folder: str) -> None:
    ds = make(folder)
    take(ds, 3, worker=1, workers=2)
    state = ds.state_dict()
    assert state["worker"] == 1
    other = make(folder)
    other.load_state_dict(state)
    with pytest.raises(ConfigError, match="the state is of worker 1 of 2"):
        take(other)


@pytest.mark.parametrize("options", [{"shuffle_window": 5}, {"shuffle_window": -1, "seed": 1}])
def test_windows_that_cannot_work(folder: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="shuffle_window is"):
        make(folder, **options)
