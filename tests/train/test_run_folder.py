"""A run's folder, here and on an S3: whose it is, what a second run removes, and what nobody ever removes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cabrank.errors import ConfigError, MissingBucketError, StorageError
from cabrank.local.store import EmbeddedStore
from cabrank.store import open_store
from cabrank.train.run_folder import RESULTS, SUMMARY, RunFolder

Place = tuple[str, dict[str, Any]]


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A URI that does not exist yet, and its storage options."""
    if request.param == "local":
        yield str(tmp_path / "runs" / "a run, 1+1%"), {}
        return
    bucket = request.getfixturevalue("s3")
    yield f"{bucket.uri}/a run, 1+1%", bucket.storage_options


def contents(place: Place) -> dict[str, bytes]:
    store = open_store(*place)
    root = place[0].rstrip("/") + "/"
    return {info.uri.rsplit("/", 1)[1]: store.read(info) for info in store.list(root)}


def test_claim_writes_the_config_and_finish_the_summary(place: Place) -> None:
    folder = RunFolder(*place)
    folder.claim("baseline", {"seed": 3, "label": None})
    config = json.loads(contents(place)["config.json"])
    assert (config["job"], config["config"]) == ("baseline", {"seed": 3, "label": None})
    folder.publish("baseline", {"seed": 3}, {"metrics.csv": b"step\n"}, {"rmse": float("nan"), "rows": 3})
    assert json.loads(contents(place)["summary.json"]) == {"rmse": None, "rows": 3}
    assert set(contents(place)) == {"config.json", "metrics.csv", "summary.json"}


def test_a_second_run_replaces_the_firsts_files_when_its_own_are_ready_and_no_others(place: Place) -> None:
    folder = RunFolder(*place)
    folder.claim("baseline", {})
    folder.publish("baseline", {}, {name: b"old" for name in RESULTS if name != SUMMARY}, {"rows": 1})
    open_store(*place).put(place[0] + "/notes.txt", b"mine")
    former = contents(place)
    second = RunFolder(*place)
    second.claim("baseline", {"seed": 4})
    assert contents(place) == former
    second.publish("baseline", {"seed": 4}, {"loss.png": b"new"}, {"rows": 2})
    left = contents(place)
    assert set(left) == {"config.json", "loss.png", "summary.json", "notes.txt"}
    assert (left["notes.txt"], left["loss.png"]) == (b"mine", b"new")
    assert json.loads(left["config.json"])["config"] == {"seed": 4}
    assert json.loads(left["summary.json"]) == {"rows": 2}


@pytest.mark.parametrize("name", ["part-00001-ab-c000.csv", "deep/below/x.bin", "summary.json", "config.json"])
@pytest.mark.parametrize("data", [b"precious", b'{"other": "tool"}', b"[1]"])
def test_a_folder_with_anything_else_in_it_is_refused_untouched(place: Place, name: str, data: bytes) -> None:
    store = open_store(*place)
    store.put(f"{place[0]}/{name}", data)
    before = {info.uri: store.read(info) for info in store.list(place[0])}
    with pytest.raises(ConfigError, match="no cabrank run") as raised:
        RunFolder(*place).claim("baseline", {})
    assert name in str(raised.value)
    assert {info.uri: store.read(info) for info in store.list(place[0])} == before


def test_a_folder_whose_name_only_begins_alike_is_another_folder(place: Place) -> None:
    store = open_store(*place)
    store.put(place[0] + "-other/precious.csv", b"1")
    RunFolder(*place).claim("baseline", {})
    assert store.read(store.stat(place[0] + "-other/precious.csv")) == b"1"


def test_a_name_that_the_next_run_would_not_remove_is_a_fault_of_ours(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="RESULTS"):
        RunFolder(str(tmp_path)).publish("baseline", {}, {"extra.bin": b""}, {})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_to(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError) as raised:
        RunFolder(str(tmp_path / "run")).claim("baseline", {})
    assert raised.value.exit_code == 5


def test_a_file_in_the_folders_place(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(StorageError) as raised:
        RunFolder(str(tmp_path / "run")).claim("baseline", {})
    assert raised.value.exit_code == 5
    assert (tmp_path / "run").read_text() == "a file"


def test_a_bucket_that_is_not_there() -> None:
    with EmbeddedStore("runs") as store, pytest.raises(MissingBucketError, match="elsewhere"):
        RunFolder("s3://elsewhere/run", store.storage_options).claim("baseline", {})
