"""Features: reference values, CSV and tensors equal to the last bit, nothing learned from a test set."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from pyarrow import csv

from cabrank.commands import engineer, shard
from cabrank.config import EngineerConfig, ShardConfig
from cabrank.data import taxi
from cabrank.data.dataset import ObjectStorageDataset
from cabrank.data.sample import trips as make_trips
from cabrank.errors import BadValueError, ConfigError, NoDataError, SchemaError
from cabrank.features import fitting
from cabrank.features.engineer import Features
from cabrank.features.fitting import fit_features
from cabrank.features.spec import Spec
from cabrank.train.least_squares import LeastSquares


def engineer_parts(**settings: object) -> None:
    engineer.run(EngineerConfig.of({name: str(value) for name, value in settings.items()}))


def rows_of(data: object, **settings: Any) -> torch.Tensor:
    """All rows of a dataset, as its batches bring them."""
    batches = ObjectStorageDataset(str(data), tail="uneven", **settings)
    return torch.cat([batch for batch in batches if isinstance(batch, torch.Tensor)])


def spec_of(*steps: Mapping[str, object], **others: object) -> Spec:
    return Spec.of({"step": steps, **others}, "spec")


def made(spec: Spec | str, folder: str, rows: Sequence[Sequence[float]]) -> dict[str, list[float]]:
    """Columns by name that a spec fitted to `folder` makes of other rows."""
    engineered = fit_features(spec, folder).bind(ObjectStorageDataset(folder).columns)
    return dict(zip(engineered.columns, engineered(np.array(rows, float)).T.tolist(), strict=True))


def test_coordinate_bins_are_the_reference_values(write_csv: Any) -> None:
    data = write_csv("d", ["y", "lat", "lon"], [[1, 38.30, -76.12], [2, 38.90, -76.48], [3, 38.5, -76.3]])
    spec = spec_of({"kind": "bins", "columns": ["lat", "lon"], "bins": 3, "encode": "index"})
    features = fit_features(spec, data)
    lat, lon = json.loads(features.spec.encoded())["step"][0]["edges"]
    assert lat == pytest.approx([38.30, 38.50, 38.70, 38.90], abs=1e-12)
    assert lon == pytest.approx([-76.48, -76.36, -76.24, -76.12], abs=1e-12)
    engineered = features.bind(["y", "lat", "lon"])
    rows = [[0, 38.31, -76.47], [0, 38.61, -76.14], [0, 38.9, -76.12], [0, 38.95, -76.2], [0, 38.2999, -80]]
    assert engineered.columns == ("y", "lat_bin", "lon_bin")
    assert engineered(np.array(rows))[:, 1:].tolist() == [[0, 0], [1, 2], [2, 2], [3, 2], [3, 3]]
    assert engineered.outside == {"lat": 2, "lon": 1}


def test_one_hot_has_a_column_a_bin_one_for_outside_and_zeros_for_a_new_category(write_csv: Any) -> None:
    data = write_csv("d", ["y", "x", "day"], [[1, 0, 1], [1, 2, 7], [1, 1, 3]])
    spec = spec_of({"kind": "bins", "columns": ["x"], "bins": 2}, {"kind": "onehot", "columns": ["day"]})
    found = made(spec, data, [[9, 0.5, 3], [9, 2, 1], [9, -1, 4]])
    assert found == {
        "y": [9, 9, 9],
        "x_bin0": [1, 0, 0], "x_bin1": [0, 1, 0], "x_outside": [0, 0, 1],
        "day_1": [0, 1, 0], "day_3": [1, 0, 0], "day_7": [0, 0, 0],
    }  # fmt: skip


def test_distances_and_angles(write_csv: Any) -> None:
    columns = ["y", "a", "b", "c", "d", "h"]
    data = write_csv("d", columns, [[0] * 6, [1] * 6])
    spec = spec_of(
        {"kind": "distance", "origin": ["a", "b"], "destination": ["c", "d"]},
        {"kind": "cyclic", "columns": ["h"], "period": 24},
    )
    # Washington's Union Station to Dulles airport; a degree along a meridian; the antipodes
    found = made(
        spec, data, [[0, 38.8977, -77.0063, 38.9531, -77.4565, 6], [0, 10, 5, 11, 5, 23], [0, 0, 0, 0, 180, 0]]
    )
    assert found["haversine_miles"] == pytest.approx([24.497, 69.0934, 12436.81], rel=2e-4)
    assert found["manhattan_miles"] == pytest.approx([28.02, 69.0934, 12436.81], rel=2e-3)
    assert found["h_sin"] == pytest.approx([1, -0.258819, 0], abs=1e-6)
    assert found["h_cos"] == pytest.approx([0, 0.965926, 1], abs=1e-6)


def test_grid_cells_are_200_metres_squares(write_csv: Any) -> None:
    data = write_csv("d", ["y", "lat", "lon"], [[1, 38.8, -77.1], [2, 39.0, -76.9]])
    (grid,) = fit_features(spec_of({"kind": "grid", "latitude": "lat", "longitude": "lon"}), data).spec.step
    lat, lon = json.loads(grid.model_dump_json())["edges"]
    metres = 40_030_174 / 360  # a degree of a great circle: 2 π 6,371,008.8 m / 360
    assert np.diff(lat) * metres == pytest.approx(200, rel=1e-5)
    assert np.diff(lon) * metres * np.cos(np.radians(38.9)) == pytest.approx(200, rel=1e-5)
    assert lat[0], lat[-1] == (38.8, pytest.approx(39.0, abs=200 / metres))
    assert lat[-1] >= 39.0


def test_scaling_and_crossing_with_a_column_that_a_step_makes(write_csv: Any) -> None:
    rows: list[list[float]] = [[0, 1, 10], [0, 2, 20], [0, 3, 60], [0, 4, 30]]
    data = write_csv("d", ["y", "a", "b"], rows)
    spec = spec_of(
        {"kind": "bins", "columns": ["b"], "bins": 2, "encode": "index"},
        {"kind": "cross", "columns": ["a", "b_bin"], "encode": "index"},
        {"kind": "standardise", "columns": ["a", "b_bin"]},
        {"kind": "minmax", "columns": ["b"]},
        drop=["b_bin"],
        keep=["a"],
    )
    found = made(spec, data, [*rows, [7, 9, 35]])
    assert list(found) == ["y", "a", "a_x_b_bin", "a_standardised", "b_bin_standardised", "b_minmax"]
    assert found["a_x_b_bin"] == [0, 2, 5, 6, 8]  # 4 values of a × 2 bins; 8: a is 9, which was not there
    assert found["a_standardised"][:2] == pytest.approx([-1.161895, -0.387298], abs=1e-6)
    assert found["b_bin_standardised"] == pytest.approx([-0.5, -0.5, 1.5, -0.5, 1.5], abs=1e-12)
    assert found["b_minmax"] == pytest.approx([0, 0.2, 1, 0.4, 0.5])


WIDE = spec_of(
    {"kind": "bins", "columns": taxi.COLUMNS[1:3], "bins": 7, "encode": "index"},
    {"kind": "cross", "columns": [f"{name}_bin" for name in taxi.COLUMNS[1:3]]},
    {"kind": "distance", "origin": taxi.COLUMNS[1:3], "destination": taxi.COLUMNS[3:5], "name": "trip"},
    {"kind": "standardise", "columns": ["trip_haversine_miles", *taxi.COLUMNS[3:]]},
    {"kind": "minmax", "columns": taxi.COLUMNS[1:]},
    {"kind": "cyclic", "columns": taxi.COLUMNS[6:], "period": 24},
    drop=[f"{taxi.COLUMNS[1]}_bin"],
)


@pytest.mark.parametrize("spec", ["taxi", "taxi-grid", "wide"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_csv_and_tensors_are_equal_to_the_last_bit(spec: str, dtype: str, trips: Path, tmp_path: Path) -> None:
    if spec == "wide":
        spec = str(tmp_path / "wide.json")
        Path(spec).write_bytes(WIDE.encoded())
    out = tmp_path / "made"
    engineer_parts(src=trips, dest=out, spec=spec)
    features = Features.read(str(out / ".meta" / "features.json"))
    expected = rows_of(out, batch_size=3000, dtype=dtype)
    names = ObjectStorageDataset(str(out)).columns
    for size in (7, 1000, 3000):
        flying = rows_of(trips, batch_size=size, dtype=dtype, features=features)
        assert torch.equal(flying, expected)
        assert flying.dtype == expected.dtype
    assert ObjectStorageDataset(str(trips), features=features).columns == names


def test_the_cache_keeps_the_parts_as_they_are(trips: Path, tmp_path: Path) -> None:
    features = fit_features("taxi", str(trips))
    cache = str(tmp_path / "cache")
    first = rows_of(trips, batch_size=500, features=features, cache_dir=cache)
    second = rows_of(trips, batch_size=400, features=features, cache_dir=cache)
    raw = rows_of(trips, batch_size=500, cache_dir=cache)
    assert torch.equal(first, second)
    assert raw.shape[1] == 9
    assert torch.equal(raw[:, 0], first[:, 0])


def test_a_test_set_is_made_with_the_values_of_the_training_set(write_csv: Any, tmp_path: Path) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text(
        '[[step]]\nkind = "standardise"\ncolumns = ["x"]\n[[step]]\nkind = "bins"\ncolumns = ["x"]\nbins = 2\n'
        '[[step]]\nkind = "onehot"\ncolumns = ["k"]\n'
    )
    train = write_csv("train", ["y", "x", "k"], [[1, 0, 1], [2, 10, 2]])
    test = write_csv("test", ["y", "x", "k"], [[3, 100, 1], [4, 5, 9]])
    engineer_parts(src=train, dest=tmp_path / "a", spec=spec)
    fitted = tmp_path / "a" / ".meta" / "features.json"
    engineer_parts(src=test, dest=tmp_path / "b", spec=fitted)
    text = (tmp_path / "b" / "part-00000.csv").read_text().splitlines()
    assert text[0] == "y,x_standardised,x_bin0,x_bin1,x_outside,k_1,k_2"
    rows = np.loadtxt(io.StringIO("\n".join(text[1:])), delimiter=",")
    assert rows[:, 1] == pytest.approx([95 / 50**0.5, 0])  # mean 5, the sample's deviation √50
    assert rows[:, 2:].tolist() == [[0, 0, 1, 1, 0], [0, 1, 0, 0, 0]]
    assert (tmp_path / "b" / ".meta" / "features.json").read_bytes() == fitted.read_bytes()
    without = write_csv("lacks", ["y", "k"], [[3, 1]])
    with pytest.raises(SchemaError, match="reads the column 'x', and there is none; there are: k"):
        engineer_parts(src=without, dest=tmp_path / "c", spec=fitted)
    inference = Features.read(str(fitted)).bind(["x", "k"], label=False)
    assert inference(np.array([[5.0, 1.0]])).tolist() == [[0, 0, 1, 0, 1, 0]]


def test_parquet_in_csv_out(trips: Path, tmp_path: Path) -> None:
    for name, source in enumerate(sorted(trips.glob("part-*"))):
        (tmp_path / "columns").mkdir(exist_ok=True)
        pq.write_table(csv.read_csv(source), tmp_path / "columns" / f"part-{name:05d}.parquet")
    for data in ("trips", "columns"):
        engineer_parts(src=tmp_path / data, dest=tmp_path / f"{data}-made", spec="taxi-grid")
    assert (tmp_path / "columns-made" / "part-00000.csv").exists()
    assert torch.equal(rows_of(tmp_path / "columns-made"), rows_of(tmp_path / "trips-made"))


@pytest.mark.parametrize("kind", ["ours", "spark"])
def test_statistics_come_from_the_metadata(
    kind: str, trips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard.run(ShardConfig(data=str(trips)))
    if kind == "spark":
        (trips / ".meta" / "plan.json").unlink()
    rows = rows_of(trips, batch_size=1000).numpy()
    monkeypatch.setattr(fitting, "read_blocks", None)  # a read would fail
    features = fit_features(spec_of({"kind": "standardise", "columns": taxi.COLUMNS[1:]}), str(trips))
    (step,) = json.loads(features.spec.encoded())["step"]
    np.testing.assert_allclose(step["shift"], rows[:, 1:].mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(step["scale"], rows[:, 1:].std(axis=0, ddof=1), rtol=1e-12)
    assert features.spec.fitted_rows == 3000


@pytest.mark.parametrize(
    ("step", "error", "said"),
    [
        ({"kind": "standardise", "columns": ["c"]}, ConfigError, r"'c' is constant \(4.0 in every row\)"),
        ({"kind": "minmax", "columns": ["c"]}, ConfigError, "'c' is constant"),
        ({"kind": "bins", "columns": ["c"]}, ConfigError, "'c' is constant"),
        ({"kind": "minmax", "columns": ["z"]}, ConfigError, "the column 'z', and there is none; there are: x, c"),
        ({"kind": "minmax", "columns": ["y"]}, ConfigError, "'y', which is the label"),
        ({"kind": "onehot", "columns": ["x"]}, BadValueError, "'x' has the value 1.5"),
        ({"kind": "grid", "latitude": "x", "longitude": "y"}, ConfigError, "'y', which is the label"),
        ({"kind": "bins", "columns": ["x"], "bins": 5000}, ConfigError, "5,001 columns would be made"),
        ({"kind": "bins", "columns": ["x", "x"]}, ConfigError, "two columns would be called 'x_bin0'"),
    ],
)
def test_steps_that_do_not_fit_the_data(step: Any, error: Any, said: str, write_csv: Any) -> None:
    data = write_csv("d", ["y", "x", "c"], [[1, 1.5, 4], [2, 2, 4], [3, 7, 4]])
    with pytest.raises(error, match=said):
        fit_features(spec_of(step), data)


def test_names_in_keep_and_drop_must_exist_and_values_be_few(write_csv: Any) -> None:
    data = write_csv("d", ["y", "x", "c"], [[i, i, i % 2] for i in range(1001)])
    minmax = {"kind": "minmax", "columns": ["x"]}
    with pytest.raises(ConfigError, match="keep names 'w', and there is no such column; there are: x, c"):
        fit_features(spec_of(minmax, keep=["w"]), data)
    with pytest.raises(ConfigError, match="drop names 'x', which no step makes; they make: x_minmax"):
        fit_features(spec_of(minmax, drop=["x"]), data)
    with pytest.raises(ConfigError, match="'x' has more than 1,000 distinct values"):
        fit_features(spec_of({"kind": "onehot", "columns": ["x"]}), data)
    with pytest.raises(ConfigError, match=r"not fitted: minmax take.*features engineer"):
        Features(spec_of(minmax))


def test_rows_without_values(write_csv: Any, tmp_path: Path) -> None:
    data = write_csv("d", ["y", "x"], [[1, 1], [2, ""], [3, 5]])
    run = {"src": data, "dest": str(tmp_path / "out"), "spec": str(tmp_path / "s.json")}
    Path(run["spec"]).write_bytes(spec_of({"kind": "minmax", "columns": ["x"]}).encoded())
    engineer_parts(**run, nulls="drop")
    assert (tmp_path / "out" / "part-00000.csv").read_text() == "y,x_minmax\n1,0\n3,1\n"
    empty = write_csv("e", ["y", "x"], [])
    with pytest.raises(NoDataError, match="no row to fit"):
        engineer_parts(src=empty, dest=tmp_path / "out2", spec=run["spec"])


def test_a_run_that_breaks_off_leaves_no_part(trips: Path, tmp_path: Path) -> None:
    last = max(trips.glob("part-*"))
    last.write_text(last.read_text() + "x,1,1,1,1,1,1,1,1\n")
    spec = tmp_path / "s.json"
    spec.write_bytes(spec_of({"kind": "cyclic", "columns": [taxi.HOUR], "period": 24}).encoded())
    with pytest.raises(BadValueError, match="row 1001: column 'fare"):
        engineer_parts(src=trips, dest=tmp_path / "out", spec=spec)
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


def test_destinations_that_would_mix_or_replace_data(trips: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is where the data lies"):
        engineer_parts(src=trips, dest=trips, spec="taxi")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "part-00099.csv").write_text("a\n1\n")
    with pytest.raises(ConfigError, match=r"already holds part-00099\.csv"):
        engineer_parts(src=trips, dest=tmp_path / "out", spec="taxi")
    shutil.copytree(trips, tmp_path / "both" / "a")
    shutil.copytree(trips, tmp_path / "both" / "b")
    with pytest.raises(ConfigError, match="two parts are called 'part-00000-"):
        engineer_parts(src=tmp_path / "both" / "*" / "*", dest=tmp_path / "o", spec="taxi")


def test_the_taxi_preset_halves_the_error_of_the_best_linear_model(tmp_path: Path) -> None:
    text = b"".join(piece for _, piece in make_trips(200_000, seed=5, part=0))
    (tmp_path / "part-00000.csv").write_bytes((",".join(taxi.COLUMNS) + "\n").encode() + text)
    features = fit_features("taxi", str(tmp_path))
    raw, better = LeastSquares(), LeastSquares()
    rows = rows_of(tmp_path, batch_size=200_000).numpy()
    raw.add(rows)
    better.add(features.bind(taxi.COLUMNS)(rows))
    assert raw.rows == better.rows == 200_000
    assert better.optimum().rmse <= raw.optimum().rmse / 2
