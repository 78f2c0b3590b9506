"""`cabrank plan` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cabrank.commands import plan
from cabrank.config import PlanConfig
from cabrank.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> str:
    for number, count in enumerate((4, 6, 3)):
        (tmp_path / f"part-{number:05d}-x.csv").write_text("y,x\n" + "1,2\n" * count)
    (tmp_path / ".meta/shards").mkdir(parents=True)
    (tmp_path / ".meta/shards/part-0.csv").write_text("id,count\n0,4\n1,6\n2,3\n")
    return str(tmp_path)


def test_tables(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan.run(PlanConfig.of({"data": folder, "world": 2, "workers": 3, "batch_size": 4, "verify": True}))
    out = capsys.readouterr().out
    assert "13 rows in 3 parts" in out
    assert "steps an epoch: 2; rows left out: 0; rows repeated: 1" in out
    assert "verified: 4 batches of 3 workers a rank read each row exactly once" in out


def test_json_and_tails(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"data": folder, "world": 3, "batch_size": 4, "tail": "drop"}
    plan.run(PlanConfig.of({**settings, "as_json": True, "verify": True, "shuffle": True}))
    facts = json.loads(capsys.readouterr().out)
    assert (facts["rows"], facts["steps"], facts["left_out"], facts["verified_batches"]) == (13, 1, 1, 3)
    assert [rank["rows"] for rank in facts["ranks"]] == [4, 4, 4]


def test_drop_that_leaves_nothing(folder: str) -> None:
    with pytest.raises(ConfigError, match=r"batch_size is 100 on 2 ranks.*make it 6 or less"):
        plan.run(PlanConfig.of({"data": folder, "world": 2, "batch_size": 100, "tail": "drop"}))
