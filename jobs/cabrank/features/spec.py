"""A feature spec: which columns are made from which, in the words of a TOML file, a fitted JSON file, or a preset.

preset = "taxi"                  # steps that are known to help; others may follow
keep = ["year"]                  # columns that pass on as they are: those that no step reads when absent
drop = ["lat_bin"]               # what steps make for other steps only

[[step]]
kind = "bins"                    # bins grid onehot cross cyclic distance standardise minmax
columns = ["lat", "lon"]
bins = 10
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cabrank.data.taxi import FEATURE_PRESETS
from cabrank.errors import ConfigError, ObjectMissingError
from cabrank.features.measures import Cyclic, Distance, MinMax, Standardise
from cabrank.features.places import Bins, Cross, Grid, OneHot
from cabrank.features.steps import Step
from cabrank.store import StorageOptions, canonical, open_store

AnyStep = Annotated[
    Bins | Grid | OneHot | Cross | Cyclic | Distance | Standardise | MinMax, Field(discriminator="kind")
]
KINDS: dict[str, type[Step]] = {
    "bins": Bins,
    "grid": Grid,
    "onehot": OneHot,
    "cross": Cross,
    "cyclic": Cyclic,
    "distance": Distance,
    "standardise": Standardise,
    "minmax": MinMax,
}


class Spec(BaseModel):
    """Steps in their order, and what else passes. A fitted one has no blanks and says what it was fitted to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    keep: tuple[str, ...] | None = None
    drop: tuple[str, ...] = ()
    step: tuple[AnyStep, ...]
    fitted_to: str | None = None
    """Where the values come from; None while there are blanks."""
    fitted_rows: int = Field(0, ge=0)

    @classmethod
    def of(cls, values: Mapping[str, Any], where: str) -> Self:
        """From a file's content; `ConfigError` names the key, its value and what is allowed."""
        values = dict(values)
        name = values.pop("preset", None)
        if name is not None:
            if name not in FEATURE_PRESETS:
                raise ConfigError(f"{where}: preset is {name!r}: it must be one of {', '.join(FEATURE_PRESETS)}")
            base = FEATURE_PRESETS[name]
            more = values.get("step", ())
            steps = (*base["step"], *more) if isinstance(more, list | tuple) else more  # type: ignore[misc]
            values = {**base, **values, "step": steps}
        if not values.get("step"):
            raise ConfigError(f"{where}: there is no step: add [[step]] tables with kind = one of {', '.join(KINDS)}, "
                              f"or preset = one of {', '.join(FEATURE_PRESETS)}")  # fmt: skip
        try:
            return cls(**values)
        except ValidationError as error:
            faults = [_explain(dict(fault)) for fault in error.errors()]
            raise ConfigError(f"{where}: {'; '.join(dict.fromkeys(faults))}") from error

    @classmethod
    def read(cls, name: str, storage_options: StorageOptions | None = None) -> Self:
        """A preset by its name, or the file at a path or URI: JSON where its name ends so, else TOML."""
        if name in FEATURE_PRESETS:
            return cls.of({"preset": name}, f"preset {name}")
        uri = canonical(name)
        store = open_store(uri, storage_options)
        try:
            data = store.read(store.stat(uri))
        except ObjectMissingError as error:
            presets = ", ".join(FEATURE_PRESETS)
            raise ConfigError(f"features are {name!r}: neither a file ({uri}) nor a preset ({presets})") from error
        try:
            text = data.decode("utf-8")
            values = json.loads(text) if uri.endswith(".json") else tomllib.loads(text)
        except ValueError as error:
            raise ConfigError(f"{uri}: cannot be read as a feature spec: {error}; write TOML, or a preset's name: "
                              f"{', '.join(FEATURE_PRESETS)}") from error  # fmt: skip
        if not isinstance(values, dict):
            raise ConfigError(f"{uri}: holds {str(values)[:40]!r} and no table of keys: {', '.join(_keys(cls))}")
        return cls.of(values, uri)

    def encoded(self) -> bytes:
        """As JSON, every blank that is filled included; equal specs give equal bytes."""
        return (self.model_dump_json(indent=1, exclude_none=True) + "\n").encode()


def _keys(model: type[BaseModel]) -> list[str]:
    return [name for name in model.model_fields if not name.startswith(("fitted_", "format"))]


def _explain(error: Mapping[str, Any]) -> str:
    """One of pydantic's errors in the words of the file."""
    path, where, allowed = list(error["loc"]), "", ["preset", *_keys(Spec)]
    if path[0] == "step" and len(path) > 1:  # then the step's place, and its kind, where that is known
        kind = str(path[2]) if len(path) > 2 else ""
        where = f"step {path[1] + 1}{f' ({kind})' if kind else ''}: "
        allowed, path = _keys(KINDS[kind]) if kind else list(KINDS), path[3:]
    key = ".".join(map(str, path)) or "kind"
    if error["type"] == "extra_forbidden":
        return f"{where}there is no key {key!r}; there are: {', '.join(allowed)}"
    if error["type"] == "missing":
        return f"{where}{key} is missing; the keys are: {', '.join(allowed)}"
    if error["type"] == "union_tag_not_found":
        return f"{where}kind is missing; it is one of {', '.join(KINDS)}"
    if error["type"] == "union_tag_invalid":
        return f"{where}kind is {error['input'].get('kind')!r}: it must be one of {', '.join(KINDS)}"
    message = str(error["msg"]).removeprefix("Value error, ")
    given = "" if error["type"] == "value_error" else f"{key} is {error['input']!r}: "
    return f"{where}{given}{message[:1].lower()}{message[1:]}"
