"""The audit names what is planted in a table, and nothing in a clean one; its measures are those of the books."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cabrank.commands import audit as command
from cabrank.commands import sample
from cabrank.config import AuditConfig, SampleConfig
from cabrank.errors import ConfigError, NoDataError, SchemaError
from cabrank.features import relations

Columns = Mapping[str, Sequence[object]]
ROWS = 4000


def clean(rows: int = ROWS, seed: int = 0) -> dict[str, list[object]]:
    """Columns that all help to tell the price: decimals, whole numbers, text."""
    draw = random.Random(seed)
    out: dict[str, list[object]] = {name: [] for name in ("price", "area", "rooms", "age", "town", "garden")}
    for _ in range(rows):
        rooms, town = draw.randint(1, 8), draw.choice(["Bonn", "Köln", "Ulm"])
        area, age = 20 + 15 * rooms + draw.gauss(0, 12), draw.randint(0, 90)
        garden = 0 if draw.random() < 0.5 else 1
        extra = {"Bonn": 60, "Köln": 120, "Ulm": 0}[town]
        price = 2.5 * area - 1.2 * age + extra + 40 * garden + draw.gauss(0, 40)
        row = (round(price, 2), round(area, 1), rooms, age, town, garden)
        for name, value in zip(out, row, strict=True):
            out[name].append(value)
    return out


def write(folder: Path, columns: Columns, parts: int = 2) -> str:
    folder.mkdir()
    rows = list(zip(*columns.values(), strict=True))
    for part in range(parts):
        lines = [",".join(columns), *(",".join(map(str, row)) for row in rows[part::parts])]
        (folder / f"part-{part:05d}.csv").write_text("\n".join(lines) + "\n")
    return str(folder)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command and gives its JSON line."""

    def run(data: str, **settings: object) -> dict[str, Any]:
        capsys.readouterr()
        command.run(AuditConfig.of({"data": data, **settings}))
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        (found,) = [line for line in lines if line.get("event") == "audit"]
        assert isinstance(found, dict)
        return found

    return run


def named(found: dict[str, Any]) -> set[tuple[str, str]]:
    return {(finding["column"], finding["code"]) for finding in found["findings"]}


def test_a_clean_table_has_nothing_to_look_into(tmp_path: Path, run: Any) -> None:
    found = run(write(tmp_path / "data", clean()), test=write(tmp_path / "test", clean(1000, seed=1)))
    assert found["findings"] == []
    assert (found["rows"], found["test_rows"], found["shared_rows"]) == (ROWS, 1000, 0)
    assert found["columns"]["town"]["kind"] == "text"
    assert found["columns"]["town"]["pearson"] is None
    assert found["columns"]["area"]["distinct"] > 500


def test_each_planted_fault_is_named_and_nothing_else(tmp_path: Path, run: Any) -> None:
    draw, data, test = random.Random(9), clean(), clean(1000, seed=1)
    for table in (data, test):
        rows = len(table["price"])
        prices: list[Any] = table["price"]
        table["taxed"] = [round(1.19 * price + 3, 2) for price in prices]
        table["key"] = draw.sample(range(10**6, 10**7), rows)
        table["region"] = [
            20500 + 11 * round((price + draw.gauss(0, 60)) / 100) for price in prices
        ]  # five digits, many repeat
        table["gaps"] = ["" if draw.random() < 0.3 else round(price + draw.gauss(0, 90)) for price in prices]
        table["unit"] = ["EUR"] * rows
        table["noise"] = draw.sample(table["area"], rows)
        table["sold"] = ["" if price > 400 else round(price / 70 + draw.gauss(0, 1)) for price in prices]
    for values in zip(*data.values(), strict=True):
        if draw.random() < 0.05:
            for name, value in zip(test, values, strict=True):
                test[name].append(value)
    found = run(write(tmp_path / "data", data), test=write(tmp_path / "test", test), known_late="age")
    expected = {
        ("taxed", "leak"), ("key", "identifier"), ("region", "code"), ("gaps", "missing"), ("unit", "constant"),
        ("noise", "unrelated"), ("sold", "missing-by-label"), ("sold", "missing"), ("age", "late"), ("", "shared-rows"),
    }  # fmt: skip
    assert named(found) == expected
    by_code = {finding["code"]: finding["text"] for finding in found["findings"]}
    assert "label is above 39" in by_code["missing-by-label"]
    assert found["shared_rows"] == pytest.approx((len(test["price"]) - 1000) / len(test["price"]))


@pytest.mark.parametrize(
    ("name", "make", "code"),
    [
        ("square", lambda price, i: round((price - 200) ** 2, 1), "unrelated-or-fine"),
        ("wave", lambda price, i: f"g{round(price / 60)}", "leak"),
        ("zip", lambda price, i: f"{int(abs(price)) % 50:05d}", "code"),
        ("customer_id", lambda price, i: int(abs(price)) % 800, "code"),
        ("uuid", lambda price, i: f"{i * 2654435761 % 2**32:08x}", "identifier"),
        ("mixed", lambda price, i: "unknown" if i % 50 == 0 else round(price) // 7, "words"),
        ("nothing", lambda price, i: "", "missing"),
    ],
)
def test_single_columns(name: str, make: Any, code: str, tmp_path: Path, run: Any) -> None:
    table = clean()
    if name == "wave":  # the label is a function of a text
        table["price"] = [round(float(str(price)) / 60) for price in table["price"]]
        table[name] = [f"g{price}" for price in table["price"]]
    else:
        table[name] = [make(float(str(price)), i) for i, price in enumerate(table["price"])]
    found = named(run(write(tmp_path / "data", table)))
    if code == "unrelated-or-fine":
        assert (name, "unrelated") not in found
    else:
        assert (name, code) in found


def test_the_sample_is_bounded_seeded_and_said(tmp_path: Path, run: Any) -> None:
    data = write(tmp_path / "data", clean(), parts=5)
    first, again = run(data, sample_rows=1000), run(data, sample_rows=1000)
    other = run(data, sample_rows=1000, seed=1)
    assert first == again
    assert (first["sample_rows"], first["rows"]) == (1000, ROWS)
    assert first["columns"] != other["columns"]
    assert first["columns"]["area"]["pearson"] == pytest.approx(other["columns"]["area"]["pearson"], abs=0.1)


def test_bad_input(tmp_path: Path, run: Any) -> None:
    data = write(tmp_path / "data", clean(50))
    with pytest.raises(ConfigError, match=r"no column 'cost' in .*; its columns are: price, area"):
        run(data, label="cost")
    with pytest.raises(ConfigError, match="--known-late has 'sold'; the columns are: price"):
        run(data, known_late="age,sold")
    short = clean(50)
    del short["rooms"]
    with pytest.raises(SchemaError, match="lacks the column 'rooms'"):
        run(data, test=write(tmp_path / "test", short))
    with pytest.raises(NoDataError, match="no rows"):
        run(write(tmp_path / "empty", {"a": [], "b": []}))
    (tmp_path / "ragged").mkdir()
    (tmp_path / "ragged" / "part-00000.csv").write_text("a,b\n1,x\n2,y,z\n")
    with pytest.raises(SchemaError, match="row 2: has 3 fields, not 2"):
        run(str(tmp_path / "ragged"))
    with pytest.raises(ConfigError, match="'town' is text"):
        run(data, label="town", spec="taxi")


def test_the_report_and_what_features_are_worth(tmp_path: Path, run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    sample.run(SampleConfig(dest=str(tmp_path / "trips"), rows=8_000, parts=2, seed=4))
    out = tmp_path / "out"
    found = run(str(tmp_path / "trips"), spec="taxi", out=str(out))
    errors = found["comparison"]
    assert errors["rows"] == 8_000
    assert errors["features_rmse"] <= errors["raw_rmse"] / 2
    assert {advice["code"] for advice in found["advice"]} >= {"preset", "place", "distance", "cycle", "standardise"}
    page = (out / "report.html").read_text()
    for text in ("1. Is it related to the label?", "5. Does an expert know more?", f"{errors['features_rmse']:,.4g}",
                 f"{errors['raw_rmse']:,.4g}", "Correlation is not cause", "haversine_miles"):  # fmt: skip
        assert text in page
    assert page.count("data:image/png;base64,") == 2
    assert json.loads((out / "summary.json").read_text())["comparison"] == errors


def test_measures_by_other_formulas() -> None:
    draw = np.random.default_rng(3)
    x, noise = draw.integers(0, 9, 500).astype(float), draw.standard_normal(500)
    y = np.round(x**2 - 6 * x + noise, 1)
    assert relations.pearson(x, y) == pytest.approx(np.corrcoef(x, y)[0, 1])
    by_count = np.array([(x < v).sum() + ((x == v).sum() + 1) / 2 for v in x])
    assert relations.ranks(x).tolist() == by_count.tolist()
    assert relations.pearson(1e200 * x, -1e-200 * x) == pytest.approx(-1)
    shared = relations.mutual_information(np.repeat([0, 1], 500), np.repeat([1, 0], 500), 1000)[0]
    assert shared == pytest.approx(1, abs=1e-3)  # a fair coin and its copy share one bit
    order = np.arange(1000.0)
    assert relations.xi(order, order) == pytest.approx(1 - 3 * 999 / (1000**2 - 1))  # Chatterjee's formula without ties
    assert relations.xi(order, np.cos(order / 50)) > 0.9
    assert abs(relations.xi(order, draw.standard_normal(1000))) < 0.1


def test_noise_is_seldom_taken_for_a_relation() -> None:
    draw = np.random.default_rng(8)
    y = draw.exponential(size=2000)
    kinds: list[Callable[[int], Any]] = [
        draw.standard_normal,
        lambda n: draw.integers(0, 2, n),
        lambda n: draw.integers(0, 40, n),
    ]
    found = [
        relations.relate(np.asarray(kind(2000), np.float64), draw.integers(0, 9, 2000), y).beyond_chance
        for kind in kinds
        for _ in range(60)
    ]
    assert sum(found) <= 1
