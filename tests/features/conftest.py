"""Small tables for the features' tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from cabrank.commands import sample
from cabrank.config import SampleConfig

WriteCsv = Callable[[str, Sequence[str], Sequence[Sequence[object]]], str]


@pytest.fixture
def write_csv(tmp_path: Path) -> WriteCsv:
    """Writes folder/part-00000.csv and gives the folder's path."""

    def write(folder: str, names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
        target = tmp_path / folder
        target.mkdir(parents=True)
        lines = [",".join(names), *(",".join(map(str, row)) for row in rows)]
        (target / "part-00000.csv").write_text("\n".join(lines) + "\n")
        return str(target)

    return write


@pytest.fixture
def trips(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """3,000 taxi trips in three parts."""
    sample.run(SampleConfig(dest=str(tmp_path / "trips"), rows=3000, parts=3, seed=3))
    capsys.readouterr()
    return tmp_path / "trips"
