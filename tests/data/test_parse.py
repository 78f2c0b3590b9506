"""Parsing against values written down by hand, and every kind of bad field, with and without a policy for it."""

from __future__ import annotations

import re

import numpy as np
import pytest

from cabrank.data.csv_text import locate, parse_block, split_header
from cabrank.data.parse import BlockError, Schema, choose_columns, largest
from cabrank.errors import BadValueError, ConfigError, DataError, SchemaError
from cabrank.nulls import NullPolicy

AB = Schema(("a", "b"))
GOOD = [
    b"1,2\n3,4\n",
    b"1,2\n3,4",
    b"1,2\r\n3,4\r\n",
    b"1,2\r3,4\r",
    b"1,2\n\n3,4\n\n",
    b" 1, 2\n3,\t4 \n",
    b'"1",2\n3,"4"\n',
    b"+1,2.\n3e0,.4e1\n",
    b"01,2.0000\n3,4",
]


def fault(data: bytes, nulls: str = "raise", schema: Schema = AB) -> DataError:
    with pytest.raises(BlockError) as caught:
        parse_block(data, ("a", "b"), schema, NullPolicy.of(nulls))
    return caught.value.fault.error("s3://b/part-00000.csv", 100)


@pytest.mark.parametrize("data", GOOD)
def test_real_files_variety_gives_the_same_numbers(data: bytes) -> None:
    parsed = parse_block(data, ("a", "b"), AB, NullPolicy())
    assert parsed.values.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert parsed.values.flags.c_contiguous
    assert (parsed.rows, parsed.dropped, parsed.filled) == (2, 0, 0)


@pytest.mark.parametrize("data", [b"", b"\n", b"\n\r\n"])
def test_nothing_is_no_rows(data: bytes) -> None:
    assert parse_block(data, ("a", "b"), AB, NullPolicy()).values.shape == (0, 2)


def test_columns_are_joined_by_name_and_only_the_wanted_ones_are_read() -> None:
    schema = Schema(("c", "a"), ("a", "b", "c"))
    parsed = parse_block(b'1,"two\nlines",3\n4,x,6\n', ("a", "b", "c"), schema, NullPolicy())
    assert parsed.values.tolist() == [[3.0, 1.0], [6.0, 4.0]]


def test_float32_and_an_int_that_becomes_a_fraction_later() -> None:
    parsed = parse_block(b"1,2\n" * 5000 + b"1.5,2\n", ("a", "b"), AB, NullPolicy(), np.float32)
    assert parsed.values.dtype == np.float32
    assert parsed.values[-1].tolist() == [1.5, 2.0]


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("", "the field is empty"),
        ("  ", "the field is empty"),
        ('""', "the field is empty"),
        ("NaN", "'NaN' stands for no value"),
        ("nan", "'nan' stands for no value"),
        ("NA", "'NA' stands for no value"),
        ("NULL", "'NULL' stands for no value"),
        ("inf", "'inf' is infinite"),
        ("-Infinity", "'-Infinity' is infinite"),
        ("1e400", "'1e400' is too large for float64"),
    ],
)
@pytest.mark.parametrize("column", [0, 1])
def test_no_finite_number_follows_the_policy(field: str, words: str, column: int) -> None:
    row = f"{field},8" if column == 0 else f"8,{field}"
    data = f"1,2\n{row}\n3,4\n".encode()
    error = fault(data)
    assert isinstance(error, BadValueError)
    assert error.exit_code == 3
    assert str(error).startswith(f"s3://b/part-00000.csv: row 102: column {'ab'[column]!r}: {words}; ")
    assert "nulls=drop or nulls=fill=VALUE" in str(error)

    dropped = parse_block(data, ("a", "b"), AB, NullPolicy.of("drop"))
    assert (dropped.rows, dropped.dropped, dropped.bad.tolist()) == (3, 1, [1])
    assert dropped.matrix.tolist() == [[1.0, 2.0], [3.0, 4.0]]

    filled = parse_block(data, ("a", "b"), AB, NullPolicy.of("fill=-1.5"))
    assert filled.values[1].tolist() == ([-1.5, 8.0] if column == 0 else [8.0, -1.5])
    assert (filled.filled, filled.dropped) == (1, 0)


@pytest.mark.parametrize("word", ["x", "1_000", "0x10", "true", "1d5", "'2'", "3 4", "1,5", "½", "−1", "$3"])
@pytest.mark.parametrize("nulls", ["raise", "drop", "fill=0"])
def test_a_word_is_an_error_under_every_policy(word: str, nulls: str) -> None:
    error = fault(f'1,2\n3,"{word}"\n'.encode(), nulls)
    assert isinstance(error, BadValueError)
    assert str(error).startswith(
        f"s3://b/part-00000.csv: row 102: column 'b': {word!r} is no number; correct the field"
    )


@pytest.mark.parametrize("nulls", ["raise", "drop", "fill=0"])
@pytest.mark.parametrize(("row", "fields"), [("1", 1), ("1,2,3", 3), ("1,2,", 3), ('1,"2,3"", 4', 2)])
def test_a_ragged_row(row: str, fields: int, nulls: str) -> None:
    error = fault(f"1,2\n\n3,4\n{row}\n".encode(), nulls)
    if fields != 2:
        assert isinstance(error, SchemaError)
        assert f"row 103: has {fields} fields, not 2" in str(error)
    else:
        assert "row 103" in str(error)


def test_a_newline_inside_a_quoted_number_is_located() -> None:
    assert "row 102: column 'b': '4\\n5' is no number" in str(fault(b'1,2\n3,"4\n5"\n'))


def test_not_utf8_is_located() -> None:
    assert "row 101: column 'b': '\ufffd\ufffd' is no number" in str(fault(b"1,\xff\xfe\n"))


def test_locate_tells_the_first_fault_that_no_policy_mends() -> None:
    found = [locate(data, ("a", "b"), AB) for data in (b"1,\n2,3\nx,inf\n1\n", b"1,2\n1\nx,y\n", b",NaN\ninf,1e999\n")]
    assert [fault and (fault.row, fault.kind) for fault in found] == [(2, BadValueError), (1, SchemaError), None]


def test_numbers_are_the_nearest_doubles() -> None:
    texts = ["0.1", "-77.113633", "1e-320", "9007199254740993", "2.2250738585072011e-308", "123456789.123456789e-5"]
    data = "".join(f"{text},0\n" for text in texts).encode()
    got = parse_block(data, ("a", "b"), AB, NullPolicy()).values[:, 0].tolist()
    assert got == [float(text) for text in texts]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "skip",
        "fill",
        "fill=",
        "fill=x",
        "fill=nan",
        "fill=inf",
        "fill=1e999",
        "Raise",
        "drop,raise",
        ":drop",
        "a:drop,a:raise",
        "a:",
        "a:skip",
        "a",
        "drop,",
        "a=fill=0",
    ],
)
def test_policies_that_do_not_exist(text: str) -> None:
    with pytest.raises(ConfigError, match="must be raise, drop or fill=VALUE"):
        NullPolicy.of(text)


@pytest.mark.parametrize(
    ("head", "names", "rest"),
    [
        (b"a,b\n1,2\n", ["a", "b"], b"1,2\n"),
        (b"\xef\xbb\xbfa,b\r\n1,2\r\n", ["a", "b"], b"1,2\r\n"),
        (b"\n\na , b\n1,2\n", ["a", "b"], b"1,2\n"),
        (b'"a","b, or\nc"\n1,2\n', ["a", "b, or\nc"], b"1,2\n"),
        (b"a,b", ["a", "b"], b""),
    ],
)
def test_headers(head: bytes, names: list[str], rest: bytes) -> None:
    found, at = split_header(memoryview(head), "file:///x.csv")
    assert found == names
    assert head[at:] == rest


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"a,b,a\n1,2,3\n", "the column 'a' twice"),
        (b"a,,c\n1,2,3\n", "a column without a name"),
        (b"\n\n", "no header"),
        ("a,b\n1,2\n".encode("utf-16"), "UTF-16 text"),
        (b"PAR1\x15\x04\x00\x00\n", r"looks like \.parquet; give the part that ending"),
        (b"\x1f\x8b\x08\x00", r"looks like \.csv\.gz"),
        (b"\x28\xb5\x2f\xfd\x00", r"looks like \.csv\.zst"),
        (b"a,b\x00,c\n", "holds zero bytes"),
        (b"x" * 300_000, "no end of the header row"),
    ],
)
def test_headers_that_are_none(head: bytes, words: str) -> None:
    with pytest.raises(SchemaError, match=rf"file:///x\.csv: .*({words})"):
        split_header(memoryview(head), "file:///x.csv")


def test_a_missing_header_does_not_cost_a_row_silently() -> None:
    with pytest.raises(SchemaError, match=r"the first row is '3\.25,38\.8' and not a header"):
        split_header(memoryview(b"3.25,38.8\n4,5\n"), "file:///x.csv")


NAMES = ["fare", "lat", "lon", "hour"]


def test_label_and_columns_by_name() -> None:
    assert choose_columns(NAMES, "u").columns == ("fare", "lat", "lon", "hour")
    assert choose_columns(NAMES, "u", label="lon").columns == ("lon", "fare", "lat", "hour")
    assert choose_columns(NAMES, "u", columns="hour, lat").columns == ("fare", "hour", "lat")
    assert choose_columns(NAMES, "u", label="hour", columns=["lat"]).columns == ("hour", "lat")


@pytest.mark.parametrize(("label", "name"), [(2, "lon"), ("2", "lon"), (0, "fare"), (-1, "hour"), ("-4", "fare")])
def test_label_by_index(label: int | str, name: str) -> None:
    assert choose_columns(NAMES, "u", label).columns == (name, *(other for other in NAMES if other != name))


def test_a_column_whose_name_is_a_number_is_no_index() -> None:
    assert choose_columns(["a", "b", "0"], "u", "0").columns == ("0", "a", "b")
    assert choose_columns(["a", "b", "0"], "u", "1").columns == ("b", "a", "0")


@pytest.mark.parametrize(
    ("label", "columns", "words"),
    [
        ("tip", None, "no column 'tip' in u; its columns are: fare, lat"),
        (4, None, "no column '4' in u; its columns are: fare, lat"),
        ("-5", None, "no column '-5'"),
        (None, "lat,tip", "no column 'tip'"),
        (None, "fare", "the label 'fare' not"),
        (-1, "hour", "the label 'hour' not"),
        (None, "lat,lat", "may stand there once"),
        (None, "", "no column ''"),
    ],
)
def test_label_and_columns_that_are_not_there(label: str | int | None, columns: str | None, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        choose_columns(NAMES, "u", label, columns)


def test_other_parts_headers_are_held_to_the_first_ones() -> None:
    schema = Schema(("a", "b"), ("a", "b", "c"))
    schema.check(["c", "a", "b"], "u")
    with pytest.raises(SchemaError, match="u: its header lacks column 'b' and has an extra column 'd', 'e'"):
        schema.check(["a", "c", "d", "e"], "u")


def test_infinity_of_float64_sums_is_not_taken_for_an_infinite_field() -> None:
    big = "1.7e308"
    parsed = parse_block(f"{big},1\n{big},2\n".encode(), ("a", "b"), AB, NullPolicy())
    assert parsed.values[:, 0].tolist() == [1.7e308, 1.7e308]


def test_a_number_that_float32_cannot_hold() -> None:
    with pytest.raises(BlockError) as caught:
        parse_block(b"1,2\n-1e39,2\n", ("a", "b"), AB, NullPolicy(), np.float32)
    assert "'-1e39' is too large for float32" in str(caught.value.fault.error("u", 0))
    assert parse_block(b"3e38,3e38\n3e38,1\n", ("a", "b"), AB, NullPolicy(), np.float32).dropped == 0


MESSY = b",NaN\ninf,2\n3,1e400\n4,\n5,\n,\n7,8\n"


def test_each_column_follows_its_own_policy() -> None:
    parsed = parse_block(MESSY, ("a", "b"), AB, NullPolicy.of("drop,a:fill=-1"))
    assert parsed.matrix.tolist() == [[-1.0, 2.0], [7.0, 8.0]]
    assert (parsed.rows, parsed.bad.tolist()) == (7, [0, 2, 3, 4, 5])
    assert parsed.filled == 1  # those of rows that are left out are not counted
    assert parsed.causes == {"b": {"NaN": 1, "too large": 1, "empty": 3}}

    with pytest.raises(BlockError) as caught:
        parse_block(MESSY, ("a", "b"), AB, NullPolicy.of("b:fill=0"))
    assert "row 1: column 'a': the field is empty" in str(caught.value.fault.error("u", 0))
    with pytest.raises(BlockError) as caught:
        parse_block(MESSY, ("a", "b"), AB, NullPolicy.of("raise,a:drop"))
    assert "row 1: column 'b': 'NaN' stands for no value" in str(caught.value.fault.error("u", 0))


@pytest.mark.parametrize(
    "data",
    [
        MESSY,
        MESSY[:-1],
        MESSY.replace(b"\n", b"\r\n"),
        MESSY.replace(b"\n", b"\n\n"),
        MESSY.replace(b"\n", b"\r"),
        MESSY.replace(b"inf", b'"inf"'),
        b"\n1,2\r" + MESSY,
    ],
)
def test_causes_of_rows_that_are_left_out(data: bytes) -> None:
    parsed = parse_block(data, ("a", "b"), AB, NullPolicy.of("drop"))
    assert parsed.causes == {"a": {"empty": 2, "infinite": 1}, "b": {"NaN": 1, "too large": 1, "empty": 3}}
    assert parse_block(data, ("a", "b"), AB, NullPolicy.of("fill=0")).causes == {}


def test_policies_by_column() -> None:
    policy = NullPolicy.of(" drop , tip:fill=-0.5,at:noon:raise")
    assert policy.of_column("fare").action == "drop"
    assert (policy.of_column("tip").action, policy.of_column("tip").value) == ("fill", -0.5)
    assert policy.of_column("at:noon").action == "raise"
    assert NullPolicy.of("a:drop").of_column("b").action == "raise"
    assert NullPolicy.of("a:drop,b:raise,fill=1") == NullPolicy.of("fill=1,b:raise,a:drop")
    with pytest.raises(ConfigError, match="nulls names the column 'tip'; there are: fare, lat"):
        NullPolicy.of("tip:drop").check(["fare", "lat"], 1e308)
    with pytest.raises(ConfigError, match=r"fills in 1e\+39, which is too large"):
        NullPolicy.of("fare:fill=1e39").check(["fare"], largest(np.float32))


def test_bfloat16_is_a_float32_matrix_within_bfloat16s_range() -> None:
    """3.3895e38 is the largest bfloat16; from half a step above it numbers round to infinity."""
    assert largest("bfloat16") == pytest.approx(3.3961775e38)
    good = parse_block(b"3.3961e38,1\n-3.39e38,2\n", ("a", "b"), AB, NullPolicy(), "bfloat16")
    assert good.values.dtype == np.float32
    for field in ("3.3962e38", "-3.4e38", "1e39"):
        with pytest.raises(BlockError, match=f"'{field}' is too large for bfloat16"):
            parse_block(f"1,2\n{field},2\n".encode(), ("a", "b"), AB, NullPolicy(), "bfloat16")


@pytest.mark.parametrize(("mark", "head"), [(";", b"a;b\n1;2\n"), ("\t", b"a\tb\n"), ("|", b"a|b|c\n")])
def test_other_separators_are_recognised(mark: str, head: bytes) -> None:
    with pytest.raises(SchemaError, match=f"is separated by {re.escape(repr(mark))}; write the part with commas"):
        split_header(memoryview(head), "u")


def test_utf16_is_recognised() -> None:
    with pytest.raises(SchemaError, match=r"the header is UTF-16 text .*save the part as UTF-8"):
        split_header(memoryview("a,b\n1,2\n".encode("utf-16")), "u")


def test_old_macs_line_ends() -> None:
    data = b"a,b\r1,2\r3,4\r"
    names, at = split_header(memoryview(data), "u")
    assert names == ["a", "b"]
    assert parse_block(data[at:], names, AB, NullPolicy()).values.tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize("field", ["x" * 200_000, "1" * 200_000 + "x", "٣"])
def test_fields_that_are_long_or_foreign(field: str) -> None:
    text = str(fault(f"1,2\n3,{field}\n".encode()))
    assert text.startswith("s3://b/part-00000.csv: row 102: column 'b': ")
    assert "is no number; correct the field" in text
    assert len(text) < 300


def test_a_number_of_many_digits_does_not_fill_the_log() -> None:
    text = str(fault(f"1,2\n3,{'9' * 100_000}\n".encode()))
    assert "is too large for float64" in text
    assert len(text) < 300
