"""What the taxi preset's makers would try on these columns: coordinates, distances, hours that come round again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations

from cabrank.data.taxi import FEATURE_PRESETS
from cabrank.features.profile import Profile
from cabrank.features.rules import Finding
from cabrank.features.spec import Spec

LATITUDE, LONGITUDE = (
    re.compile(r"lat(?:itude)?(?=_|$)", re.IGNORECASE),
    re.compile(r"(?:lon|lng|long)(?:gitude|itude)?(?=_|$)", re.IGNORECASE),
)
CYCLES = {"hour": (0, 23), "day of the week": (1, 7), "month": (1, 12), "day of the week, from 0": (0, 6)}


def suggestions(columns: Sequence[Profile]) -> Iterator[Finding]:
    """Advice for the fifth question; in the words of a feature spec."""
    names = {column.name for column in columns}
    for preset in FEATURE_PRESETS:
        raw = {name for step in Spec.read(preset).step for name in step.inputs}
        if raw <= names:
            text = f"all its columns are here: --spec {preset} compares the best linear model with and without it"
            yield Finding("", 5, "preset", f"preset {preset}: {text}", serious=False)
    places = list(_places(columns))
    for lat, lon in places:
        text = f"{lat}, {lon} are a place: kind = 'bins' or 'grid' (200 m) lets a linear model learn areas"
        yield Finding(lat, 5, "place", text, serious=False)
    for (lat1, lon1), (lat2, lon2) in combinations(places[:4], 2):
        text = f"from {lat1}, {lon1} to {lat2}, {lon2}: kind = 'distance' in miles"
        yield Finding(lat1, 5, "distance", text, serious=False)
    for column in columns:
        if column.kind == "integer" and column.distinct > 2 and (cycle := _cycle(column)):
            low, high = CYCLES[cycle]
            text = f"{low} to {high}, as a {cycle}: kind = 'cyclic' with period = {high - low + 1}, or 'onehot'"
            yield Finding(column.name, 5, "cycle", text, serious=False)


def _places(columns: Sequence[Profile]) -> Iterator[tuple[str, str]]:
    """Names of latitude and longitude that belong together: alike but for these words, with values on the globe."""
    found = {column.name: column for column in columns if column.numeric}
    longitudes = {LONGITUDE.sub("*", name).lower(): name for name in found if LONGITUDE.search(name)}
    for name, column in found.items():
        other = longitudes.get(LATITUDE.sub("*", name).lower()) if LATITUDE.search(name) else None
        if other and abs(column.found).max() <= 90 and abs(found[other].found).max() <= 180:
            yield name, other


def _cycle(column: Profile) -> str | None:
    low, high = int(column.found.min()), int(column.found.max())
    return next((name for name, ends in CYCLES.items() if ends == (low, high)), None)
