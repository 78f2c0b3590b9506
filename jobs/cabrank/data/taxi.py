"""Washington DC's taxi trips: the columns, their ranges, the tariff. The only module that knows a column's name.

Ranges are those of the field's published data set (trips inside the District, 2015 to 2019), in whole units so that
generators can stay exact: coordinates in millionths of a degree, about 0.1 m, the published files' resolution.
"""

from __future__ import annotations

from typing import Final

FARE: Final = "fareamount_double"
ORIGIN_LATITUDE: Final = "origin_block_latitude_double"
ORIGIN_LONGITUDE: Final = "origin_block_longitude_double"
DESTINATION_LATITUDE: Final = "destination_block_latitude_double"
DESTINATION_LONGITUDE: Final = "destination_block_longitude_double"
YEAR: Final = "year_integer"
MONTH: Final = "month_integer"
DAY_OF_WEEK: Final = "dow_integer"
HOUR: Final = "hour_integer"

LABEL: Final = FARE
COLUMNS: Final = (
    FARE,
    ORIGIN_LATITUDE,
    ORIGIN_LONGITUDE,
    DESTINATION_LATITUDE,
    DESTINATION_LONGITUDE,
    YEAR,
    MONTH,
    DAY_OF_WEEK,
    HOUR,
)
"""In the order of the files: the label first."""

LATITUDE_MICRODEGREES: Final = (38_811_380, 38_994_909)
LONGITUDE_MICRODEGREES: Final = (-77_113_633, -76_910_012)
YEARS: Final = range(2015, 2020)
MONTHS: Final = range(1, 13)
DAYS_OF_WEEK: Final = range(1, 8)
"""1 is Sunday, as in Spark's `dayofweek` and SQL, where the data comes from."""
HOURS: Final = range(24)

# The tariff of the DC Department of For-Hire Vehicles (31 DCMR 801) in those years.
FIRST_EIGHTH_CENTS: Final = 325  # on entry, with the first 1/8 mile
EIGHTH_CENTS: Final = 27  # each further 1/8 mile begun: 2.16 USD a mile
WAITING_CENTS_A_MINUTE: Final = 35_00 / 60  # 35 USD an hour of standing or crawling

# A degree on the WGS 84 ellipsoid at 38.9° north, the city's middle: 111.01 km and 86.74 km.
# Over the 20 km of the District a flat map is off by less than 0.2 %.
MILES_A_LATITUDE_DEGREE: Final = 68.98
MILES_A_LONGITUDE_DEGREE: Final = 53.90

_DISTANCE: Final = {
    "kind": "distance",
    "origin": (ORIGIN_LATITUDE, ORIGIN_LONGITUDE),
    "destination": (DESTINATION_LATITUDE, DESTINATION_LONGITUDE),
}
FEATURE_PRESETS: Final[dict[str, dict[str, object]]] = {
    "taxi": {
        "step": (
            _DISTANCE,
            {"kind": "onehot", "columns": (DAY_OF_WEEK, HOUR)},
            {"kind": "cyclic", "columns": (MONTH,), "period": len(MONTHS)},
            {"kind": "bins", "columns": (ORIGIN_LATITUDE, ORIGIN_LONGITUDE), "bins": 8},
            {"kind": "bins", "columns": (DESTINATION_LATITUDE, DESTINATION_LONGITUDE), "bins": 8},
        )
    },
    "taxi-grid": {  # for models that look cells up, in an embedding or a tree
        "step": (
            _DISTANCE,
            {"kind": "grid", "latitude": ORIGIN_LATITUDE, "longitude": ORIGIN_LONGITUDE},
            {"kind": "grid", "latitude": DESTINATION_LATITUDE, "longitude": DESTINATION_LONGITUDE},
            {"kind": "cyclic", "columns": (HOUR,), "period": len(HOURS)},
            {"kind": "cyclic", "columns": (DAY_OF_WEEK,), "period": len(DAYS_OF_WEEK)},
            {"kind": "cyclic", "columns": (MONTH,), "period": len(MONTHS)},
        )
    },
}
"""What is known to help on these columns, in the words of a feature spec (`cabrank.features.spec`)."""
