"""Feature specs: what is wrong with one is said with its key and what is allowed; a fitted one reads back equal."""

from __future__ import annotations

from pathlib import Path

import pytest

from cabrank.data.taxi import FEATURE_PRESETS
from cabrank.errors import ConfigError
from cabrank.features.spec import Spec


def spec(tmp_path: Path, text: str, name: str = "spec.toml") -> Spec:
    (tmp_path / name).write_text(text)
    return Spec.read(str(tmp_path / name))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ["no step", "bins", "distance", "taxi-grid"]),
        ("step = []", ["no step", "kind"]),
        ("[[step", ["cannot be read", "TOML", "taxi"]),
        ('steps = 3\n[[step]]\nkind="cyclic"\ncolumns=["h"]\nperiod=24', ["'steps'", "keep", "drop", "step"]),
        ('[[step]]\nkind="bin"\ncolumns=["a"]', ["step 1", "'bin'", "bins", "grid", "onehot", "minmax"]),
        ('[[step]]\ncolumns=["a"]', ["step 1", "kind is missing", "bins", "standardise"]),
        ('[[step]]\nkind="bins"\ncolumns=["a"]\nbins=0', ["step 1 (bins)", "bins is 0", "greater than or equal to 1"]),
        ('[[step]]\nkind="bins"\ncolumns=["a"]\nbins=2.5', ["bins is 2.5", "integer"]),
        ('[[step]]\nkind="bins"\ncolumns=[]', ["columns is []", "at least 1"]),
        ('[[step]]\nkind="bins"\ncolums=["a"]', ["'colums'", "columns", "bins", "encode"]),
        ('[[step]]\nkind="bins"\ncolumns=["a"]\nencode="both"', ["encode is 'both'", "'onehot' or 'index'"]),
        ('[[step]]\nkind="bins"\ncolumns=["a"]\nedges=[[1.0, 0.0]]', ["edges [1.0, 0.0] must ascend"]),
        ('[[step]]\nkind="cyclic"\ncolumns=["a"]\nperiod=0', ["period is 0", "greater than 0"]),
        ('[[step]]\nkind="cyclic"\ncolumns=["a"]', ["period is missing"]),
        ('[[step]]\nkind="distance"\norigin=["a"]\ndestination=["a","b"]', ["step 1 (distance)", "origin"]),
        ('[[step]]\nkind="standardise"\ncolumns=["a"]\nshift=[0.0]', ["shift and scale belong together"]),
        ('[[step]]\nkind="cross"\ncolumns=["a"]', ["columns", "at least 2"]),
        ('preset = "bus"', ["preset is 'bus'", "taxi", "taxi-grid"]),
        ("step = 7", ["step is 7", "tuple"]),
    ],
)
def test_a_wrong_spec_is_told_by_key_and_allowed_values(text: str, said: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        spec(tmp_path, text)
    for word in (*said, "spec.toml"):
        assert word in str(caught.value)


def test_a_spec_that_is_no_table_or_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds '\[1, 2\]' and no table of keys: keep, drop, step"):
        spec(tmp_path, "[1, 2]", "spec.json")
    with pytest.raises(ConfigError, match=r"neither a file \(.*nowhere\.toml\) nor a preset \(taxi, taxi-grid\)"):
        Spec.read(str(tmp_path / "nowhere.toml"))


def test_a_preset_may_be_added_to(tmp_path: Path) -> None:
    longer = spec(tmp_path, 'preset = "taxi"\nkeep = []\n[[step]]\nkind = "minmax"\ncolumns = ["x"]\n')
    steps = FEATURE_PRESETS["taxi"]["step"]
    assert isinstance(steps, tuple)
    assert longer.keep == ()
    assert [step.kind for step in longer.step] == [*(step["kind"] for step in steps), "minmax"]
    assert longer.step[:-1] == Spec.read("taxi").step


def test_json_reads_back_equal(tmp_path: Path) -> None:
    text = '[[step]]\nkind = "bins"\ncolumns = ["a"]\nedges = [[0.1, 0.30000000000000004, 1e300]]\n'
    before = spec(tmp_path, text)
    assert spec(tmp_path, before.encoded().decode(), "spec.json") == before
