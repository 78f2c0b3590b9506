"""Taxi-like trips as CSV text, made from a seed: the same bytes on every machine, with any numpy and chunk size.

    raw 64-bit words of PCG64, one stream a part, five words (20 lanes of 16 bits) a row
      lanes 0…15   four coordinates, each a sum of four lanes: a bell over the District that ends at its borders
      lane  16     month of the 60;   lane 17  hour of the week, by weight
      lane  18     time spent waiting;   lane 19  detour over the straight line

Only a bit generator's raw words are promised never to change between numpy's versions, and only + − × ÷ √ are the same
to the last bit on every processor; so there is no `rng.normal`, no sine and no logarithm in here.
Text is made by table: each row is a record of fixed cells taken from tables of ready text, padded with zero bytes,
which one pass then deletes.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from cabrank.console import counted
from cabrank.data import taxi
from cabrank.errors import ConfigError
from cabrank.store import Store

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

log = logging.getLogger("cabrank")

SUCCESS = "_SUCCESS"  # Spark's mark of a whole data set; no part, as all that begins with an underscore
HEADER = (",".join(taxi.COLUMNS) + "\n").encode()
CHUNK_ROWS = 1 << 16  # 5.8 MB of cells: large enough for numpy's overhead to vanish, small enough for the caches
WORDS_A_ROW = 5
LANE = 1 << 16  # values of one 16-bit lane

# Minutes stood at most, in rush hours and outside; mostly little of it: a uniform draw is squared.
RUSH_HOURS = (7, 8, 9, 16, 17, 18)
WAITING_MINUTES, RUSH_WAITING_MINUTES = 6.0, 12.0
# Streets are no straight lines: a trip is 1.15 to 1.45 times the distance of its ends.
DETOUR_LEAST, DETOUR_SPREAD = 1.15, 0.30

HOUR_WEIGHTS = (30, 20, 14, 9, 8, 12, 25, 48, 62, 60, 55, 56, 60, 60, 60, 62, 64, 70, 74, 70, 62, 58, 54, 42)
DAY_WEIGHTS = (12, 14, 15, 15, 15, 16, 13)  # Sunday first


def part_names(parts: int, seed: int) -> list[str]:
    """File names in Spark's manner, `part-00000-<32 hex digits>-c000.csv`; the digits follow from the seed."""
    run = hashlib.sha256(f"cabrank sample {seed}".encode()).hexdigest()[:32]
    return [f"part-{number:05d}-{run}-c000.csv" for number in range(parts)]


def part_rows(rows: int, parts: int, part: int) -> int:
    """Rows of one part: all parts are equal within one row."""
    return rows * (part + 1) // parts - rows * part // parts


def write_sample(store: Store, folder: str, rows: int, parts: int, seed: int) -> Iterator[tuple[int, int]]:
    """Writes the sample under `folder` (a URI that ends in "/"), one part after the other, in memory that does not grow
    with `rows`; yields (rows, bytes) of each piece written. A part is published whole or not at all; `_SUCCESS` is
    written behind the last, so that a folder without it is known to be unfinished. What is replaced is said.

    `ConfigError` where `folder` holds other part files: they and the sample would be read as one data set.
    """
    names = part_names(parts, seed)
    found = {info.uri.removeprefix(folder): info.size or 0 for info in store.list(folder)}
    refuse_strangers(folder, list(found), set(names))
    if old := [size for name, size in found.items() if name in names]:
        state = "an earlier sample" if SUCCESS in found else "an unfinished sample"
        log.warning("%s: replacing %s, %s of %.1f MB", folder, state, counted(len(old), "part"), sum(old) / 1e6)
    if SUCCESS in found:
        store.delete(folder + SUCCESS)
    for part, name in enumerate(names):
        with store.writer(folder + name) as file:
            file.write(HEADER)
            yield 0, len(HEADER)
            for count, text in trips(part_rows(rows, parts, part), seed, part):
                file.write(text)
                yield count, len(text)
    store.put(folder + SUCCESS, b"")


def refuse_strangers(folder: str, found: Sequence[str], names: set[str]) -> None:
    """`ConfigError` that names what is `found` in `folder` itself, is not hidden, and is not one of `names`."""
    strangers = [name for name in found if "/" not in name and name[:1] not in ("", "_", ".") and name not in names]
    if strangers:
        shown = ", ".join(strangers[:3]) + (f" and {len(strangers) - 3} more" if len(strangers) > 3 else "")
        raise ConfigError(
            f"{folder} already holds {shown}, which would be read as one data set with this sample; "
            "choose an empty folder, or remove what is there"
        )


def trips(rows: int, seed: int, part: int, chunk_rows: int = CHUNK_ROWS) -> Iterator[tuple[int, bytes]]:
    """One part's CSV text without its header, piece by piece: (rows, text). The pieces' concatenation depends on
    `rows`, `seed` and `part` only, and the first k rows do not depend on `rows`."""
    import numpy as np

    stream = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(part,)))
    for start in range(0, rows, chunk_rows):
        count = min(chunk_rows, rows - start)
        words = np.asarray(stream.random_raw(count * WORDS_A_ROW)).astype("<u8", copy=False)
        yield count, _text(words.view("<u2").reshape(count, 4 * WORDS_A_ROW))


def _text(lanes: NDArray[np.uint16]) -> bytes:
    """CSV lines of the trips that `lanes` [n, 20] describe."""
    import numpy as np

    latitude, longitude, calendar, week, fare, hour_of_draw = _tables()
    # [n, 4] → millionths of a degree above the range's lower end: origin and destination latitude, then longitude
    bell = lanes[:, :16].reshape(-1, 4, 4).sum(axis=2, dtype=np.int64)
    spans = np.array([len(latitude), len(latitude), len(longitude), len(longitude)])
    place = bell * spans // (4 * (LANE - 1) + 1)
    hour_of_week = hour_of_draw[lanes[:, 17]]

    rows = np.empty(len(lanes), dtype=_ROW)
    rows["fare"] = fare[_fare_cents(place, hour_of_week % 24, lanes[:, 18], lanes[:, 19])]
    rows["origin_latitude"], rows["destination_latitude"] = latitude[place[:, 0]], latitude[place[:, 1]]
    rows["origin_longitude"], rows["destination_longitude"] = longitude[place[:, 2]], longitude[place[:, 3]]
    rows["calendar"] = calendar[lanes[:, 16].astype(np.int64) * len(calendar) // LANE]
    rows["week"] = week[hour_of_week]
    return rows.tobytes().translate(None, b"\0")


_ROW: list[Any] = [
    ("fare", "S8"),  # "12.34,"
    ("origin_latitude", "S16"),  # "38.812345,"
    ("origin_longitude", "S16"),
    ("destination_latitude", "S16"),
    ("destination_longitude", "S16"),
    ("calendar", "S8"),  # "2015,12,"
    ("week", "S8"),  # "7,23\n"
]


def _fare_cents(
    place: NDArray[np.int64], hour: NDArray[np.int64], waiting: NDArray[np.uint16], detour: NDArray[np.uint16]
) -> NDArray[np.int64]:
    """Fares [n] by the tariff, for places [n, 4], hours of the day [n] and two 16-bit draws [n] each."""
    import numpy as np

    north = (place[:, 0] - place[:, 1]) * (taxi.MILES_A_LATITUDE_DEGREE / 1e6)
    east = (place[:, 2] - place[:, 3]) * (taxi.MILES_A_LONGITUDE_DEGREE / 1e6)
    miles = np.sqrt(north * north + east * east) * (DETOUR_LEAST + detour * (DETOUR_SPREAD / LANE))
    further_eighths = np.maximum(np.ceil(miles * 8) - 1, 0)
    share = waiting * (1 / LANE)
    longest = np.where(np.isin(hour, RUSH_HOURS), RUSH_WAITING_MINUTES, WAITING_MINUTES)
    waited = np.floor(share * share * longest * taxi.WAITING_CENTS_A_MINUTE)
    cents: NDArray[np.float64] = taxi.FIRST_EIGHTH_CENTS + taxi.EIGHTH_CENTS * further_eighths + waited
    return cents.astype(np.int64)


@cache
def _tables() -> tuple[Any, ...]:
    """Text of every latitude, longitude, month, hour of the week and fare [k], and the hour of the week [65536] that
    each value of a lane draws."""
    import numpy as np

    low, high = taxi.LATITUDE_MICRODEGREES
    west, east = taxi.LONGITUDE_MICRODEGREES
    weights = np.outer(DAY_WEIGHTS, HOUR_WEIGHTS).ravel()
    edges = np.cumsum(weights) * LANE // weights.sum()
    return (
        np.array([b"%a," % (degree / 10**6) for degree in range(low, high + 1)], "S16"),
        np.array([b"%a," % (degree / 10**6) for degree in range(west, east + 1)], "S16"),
        np.array([b"%d,%d," % (year, month) for year in taxi.YEARS for month in taxi.MONTHS], "S8"),
        np.array([b"%d,%d\n" % (day, hour) for day in taxi.DAYS_OF_WEEK for hour in taxi.HOURS], "S8"),
        np.array([b"%a," % (cents / 100) for cents in range(100_00)], "S8"),  # no trip in the District reaches 100 USD
        np.searchsorted(edges, np.arange(LANE), side="right"),
    )
