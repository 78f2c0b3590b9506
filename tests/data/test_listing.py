"""What is a part and what is not, on files with the names that real folders have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cabrank.data.listing import Part, glob_regex, list_parts
from cabrank.errors import NoDataError
from cabrank.store import ObjectInfo, open_store

FILES = [
    "csv/dev/part-00000-ab-c000.csv",
    "csv/dev/part-00002-ab-c000.csv.gz",
    "csv/dev/part-00010-ab-c000.csv",
    "csv/dev/.part-00000-ab-c000.csv.crc",
    "csv/dev/part-00000-ab-c000.csv.crc",
    "csv/dev/_SUCCESS",
    "csv/dev/.meta/shards/part-00000-x.csv",
    "csv/dev/_temporary/0/part-00000-x.csv",
    "csv/test/part-00000-ab-c000.csv",
    "csv/year=2019/month=1/part-00000.csv",
    "csv/year=2019/month=12/part-00000.csv",
    "csv/strange/a +b%20ü=c.csv",
    "csv/strange/[x]{y}.csv",
    "top.csv",
    "odd/br[ack]{e}t?/part-00000.csv",
    "mixed/README.txt",
    "mixed/data.CSV",
    "mixed/part-00001",
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in FILES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a\n1\n")
    (tmp_path / "csv/dev/part-00007-ab-c000.csv").touch()
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("glob", "names"),
    [
        ("csv/dev", [0, 1, 2]),
        ("csv/dev/", [0, 1, 2]),
        ("csv/dev/*", [0, 1, 2]),
        ("csv/dev/part-*.csv", [0, 2]),
        ("csv/dev/part-0000[0-5]*", [0, 1]),
        ("csv/dev/part-0000[!0]*", [1]),
        ("csv/dev/part-000?0*", [0, 2]),
        ("csv/dev/part-00000-ab-c000.csv", [0]),
        ("csv/*/part*.csv", [0, 2, 8]),
        ("csv/{dev,test}/part-00000*.csv", [0, 8]),
        ("csv/year=*/*/*.csv", [9, 10]),
        ("csv/year=2019/**", [9, 10]),
        ("csv/**/part-00000*.csv", [0, 8, 9, 10]),
        ("csv/strange", [12, 11]),
        ("*.csv", [13]),
        ("csv/t*t", [8]),
        ("csv/t*t/", [8]),
        ("odd/br[ack]{e}t?", [14]),
        ("odd/br[[]ack]*", [14]),
        ("mixed", [16, 17]),
        ("mixed/*", [15, 16, 17]),
        ("**/top.csv", [13]),
    ],
)
def test_globs_and_folders(tree: Path, glob: str, names: list[int]) -> None:
    store = open_store(str(tree))
    found = [part.uri for part in list_parts(f"{tree}/{glob}", store)]
    assert sorted(found) == sorted(f"file://{tree}/{FILES[name]}" for name in names)
    assert found == sorted(found, key=str.encode)


def test_a_part_knows_its_number_folder_and_name() -> None:
    part = Part.of(ObjectInfo("s3://b/csv//dev/part-00042-ab-c000.csv", 7))
    assert (part.number, part.folder, part.name) == (42, "s3://b/csv//dev/", "part-00042-ab-c000.csv")
    assert Part.of(ObjectInfo("s3://b/2019-part-1.csv", 7)).number is None


@pytest.mark.parametrize(
    ("glob", "words"),
    [
        ("csv/dev/nothing*", r"matches no part file \(.*csv/dev/ holds 'part-00000-ab-c000\.csv'"),
        ("csv/nothing", r"matches no part file \(.*csv/nothing/ holds nothing\)"),
        ("csv", r"matches no part file \(.*csv/ holds 'dev/part-00000-ab-c000.csv'"),
        ("empty", "matches no part file"),
        ("csv/dev/part-00007*", "matches 1 objects, and all are empty"),
        ("csv/dev/_SUCC*", "matches no part file"),
    ],
)
def test_nothing_there_says_what_is(tree: Path, glob: str, words: str) -> None:
    with pytest.raises(NoDataError, match=words) as caught:
        list_parts(f"{tree}/{glob}", open_store(str(tree)))
    assert f"file://{tree}/{glob}" in str(caught.value)
    assert caught.value.exit_code == 3


def test_new_files_are_seen_at_once(tree: Path) -> None:
    store = open_store(str(tree))
    before = len(list_parts(f"{tree}/csv/dev", store))
    (tree / "csv/dev/part-00011.csv").write_text("a\n2\n")
    assert len(list_parts(f"{tree}/csv/dev", store)) == before + 1


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        ("a/*.csv", ["a/b.csv", "a/.csv"], ["a/b/c.csv", "a/bcsv"]),
        ("a/**/c", ["a/c", "a/b/c", "a/b/b/c"], ["ac", "a/b/cc"]),
        ("a[b", ["a[b"], ["ab"]),
        ("a{b,c{d,e}}", ["ab", "acd", "ace"], ["ac", "a{b"]),
        ("a{b", ["a{b"], ["ab"]),
        ("a,b}", ["a,b}"], ["a"]),
        ("[[]x]", ["[x]"], ["x"]),
        (r"[\d]", ["d", "\\"], ["5"]),
    ],
)
def test_patterns(glob: str, yes: list[str], no: list[str]) -> None:
    pattern = glob_regex(glob)
    assert isinstance(pattern, re.Pattern)
    assert [text for text in yes if not pattern.fullmatch(text)] == []
    assert [text for text in no if pattern.fullmatch(text)] == []
