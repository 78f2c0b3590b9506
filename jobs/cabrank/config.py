"""One frozen config class a job: its fields are the command line's flags, the hyperparameters, and `config.json`.

A field's type, default, bounds and help stand here once; `cli.py` makes the flags from them. Values may arrive as
strings (hyperparameters do): pydantic coerces them by the declared type, and what cannot be coerced is a `ConfigError`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, ValidationError, field_validator

from cabrank.errors import ConfigError
from cabrank.nulls import RULE, NullPolicy

Dtype = Literal["float64", "float32"]


def _none_word(value: object) -> object:
    return None if isinstance(value, str) and value.strip().lower() == "none" else value


def _check_nulls(value: str) -> str:
    try:
        NullPolicy.of(value)
    except ConfigError:
        raise ValueError(RULE) from None  # pydantic's way to say so: the message then names the flag
    return value


def _whole(value: object) -> object:
    if isinstance(value, str) and not re.fullmatch(r"[+-]?[0-9]{1,4000}", value.strip()):
        raise ValueError("it must be a whole number, in digits")  # pydantic reads 1_000 and 1.0, too
    return value


def _number(value: object) -> object:
    try:
        plain = not isinstance(value, str) or ("_" not in value and float(value) is not None)
    except ValueError:
        plain = False
    if not plain:
        raise ValueError("it must be a number, such as 0.03")  # pydantic reads 1_000, too
    return value


def _cache_folder(value: object) -> object:
    if isinstance(value, str) and value.strip().lower() == "none":
        raise ValueError("without a cache there is nothing to show; name a folder, or leave it out for this user's own")
    return None if value == "auto" else value


OrNone = BeforeValidator(_none_word)
Whole = Annotated[int, Field(lt=2**63), BeforeValidator(_whole)]
"""Fits what numpy, torch and the file formats count with."""
Number = Annotated[float, BeforeValidator(_number)]
Argument: dict[str, JsonValue] = {
    "argument": True
}  # json_schema_extra of fields that are positional on the command line

Data = Annotated[
    str,
    Field(description="Folder or glob of part files: a path, file://, s3:// or https://; s3://bucket/ is its root."),
]
Out = Annotated[str, Field(description="Folder of this run, local or s3://; made when absent.")]
CacheDir = Annotated[
    str | None,
    OrNone,
    Field(
        description="Folder of decoded parts, so that later epochs do not parse; auto: this user's own; none: no cache."
    ),
]
CacheBytes = Annotated[
    Annotated[Whole, Field(ge=0)] | None,
    OrNone,
    Field(description="What the cache may take on disk; half of what is free when absent."),
]
Seed = Annotated[Whole, Field(ge=0, description="Everything random follows from it.")]
Nulls = Annotated[
    str,
    Field(
        description="Empty fields, NaN and infinity: raise | drop | fill=VALUE; single columns otherwise: "
        "drop,tip:fill=0,hour:raise."
    ),
]
EndpointUrl = Annotated[
    str | None, OrNone, Field(description="S3 endpoint, when it is not AWS (AWS_ENDPOINT_URL works, too).")
]


class Config(BaseModel):
    """Base of the job configs: frozen, and an unknown key is an error that lists the known ones."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
    verb: ClassVar[str]

    @field_validator("*", mode="before")
    @classmethod
    def _not_empty(cls, value: object) -> object:
        if isinstance(value, str) and not value.strip():
            raise ValueError("it must not be empty")
        return value

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Checks and coerces `values`; `ConfigError` names each bad field, its value and what is allowed."""
        try:
            return cls(**values)
        except ValidationError as error:
            raise ConfigError("; ".join(cls._explain(dict(e)) for e in error.errors())) from error

    @classmethod
    def _explain(cls, error: dict[str, Any]) -> str:
        name = str(error["loc"][0]) if error["loc"] else cls.verb
        flag = name if cls.is_argument(name) else cls.flag(name)
        if error["type"] == "extra_forbidden":
            return f"{cls.verb} has no setting {name!r}; it has: {', '.join(sorted(cls.model_fields))}"
        message = str(error["msg"]).removeprefix("Value error, ")
        return f"{flag} is {error['input']!r}: {message[:1].lower()}{message[1:]}"

    @classmethod
    def is_argument(cls, name: str) -> bool:
        """Whether the field is positional on the command line."""
        return bool(cls._extra(name).get("argument"))

    @classmethod
    def flag(cls, name: str) -> str:
        """The field's flag: its name with dashes, where it does not say another."""
        return str(cls._extra(name).get("flag") or "--" + name.replace("_", "-"))

    @classmethod
    def _extra(cls, name: str) -> dict[str, JsonValue]:
        field = cls.model_fields.get(name)
        extra = field.json_schema_extra if field else None
        return extra if isinstance(extra, dict) else {}

    def storage_options(self) -> dict[str, Any]:
        """What `open_store` needs beyond the environment."""
        endpoint = getattr(self, "endpoint_url", None)
        return {"endpoint_url": endpoint} if endpoint else {}


class SampleConfig(Config):
    """Makes taxi-like trips as CSV part files."""

    verb: ClassVar[str] = "sample"
    dest: str = Field(
        description="Where the parts go: a folder, file:// or s3://bucket/prefix.", json_schema_extra=Argument
    )
    rows: Whole = Field(200_000, ge=1, description="Trips in all.")
    parts: Whole = Field(12, ge=1, le=100_000, description="Part files, of equal size within one row.")
    seed: Seed = 0
    endpoint_url: EndpointUrl = None


class ShardConfig(Config):
    """Counts rows and takes statistics of each part; writes .meta beside the parts."""

    verb: ClassVar[str] = "shard"
    data: str = Field(description="Folder or glob of part files, local, file:// or s3://.", json_schema_extra=Argument)
    label: str | None = Field(
        default=None, description="Column that stands first in the statistics; the first one when absent."
    )
    columns: str | None = Field(
        default=None,
        description="Columns to measure beside the label, comma-separated: those of numbers; all when absent.",
    )
    nulls: Nulls = "raise"
    endpoint_url: EndpointUrl = None

    _nulls = field_validator("nulls")(_check_nulls)


class BaselineConfig(Config):
    """Linear regression on one device: SGD, beside the mean's and the least-squares optimum's error."""

    verb: ClassVar[str] = "baseline"
    data: Data
    out: Out
    label: str | None = Field(
        None, description="Column to predict, by name or index (-1: the last); the first one when absent."
    )
    columns: str | None = Field(None, description="Feature columns, comma-separated; all but the label when absent.")
    features: str | None = Field(
        None,
        description="Features to make of the columns: a spec, a preset (taxi, taxi-grid), a fitted features.json.",
    )
    nulls: Nulls = "raise"
    batch_size: Whole = Field(2**20, ge=1, description="Rows a step; an epoch's last batch is shorter.")
    iterations: Whole = Field(50, ge=1, description="Optimizer steps; the data starts over as often as they need.")
    learning_rate: Number = Field(0.03, gt=0, allow_inf_nan=False, description="SGD's step.")
    gradient_norm: Annotated[Number | None, OrNone] = Field(
        0.5, gt=0, allow_inf_nan=False, description="Clip the gradient's norm to this; none turns clipping off."
    )
    dtype: Dtype = Field("float64", description="Of the data and the weights.")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto takes CUDA when there is one.")
    cache_dir: CacheDir = "auto"
    cache_bytes: CacheBytes = None
    seed: Seed = 0
    endpoint_url: EndpointUrl = None

    _nulls = field_validator("nulls")(_check_nulls)


class PlanConfig(Config):
    """Shows who reads what: rows, parts and steps of each rank, and proves that each row is read once."""

    verb: ClassVar[str] = "plan"
    data: str = Field(description="Folder or glob of part files, local, s3:// or https://.", json_schema_extra=Argument)
    world: Whole = Field(1, ge=1, description="Ranks that share the data.")
    workers: Whole = Field(1, ge=1, description="DataLoader workers of each rank.")
    batch_size: Whole = Field(2**20, ge=1, description="Rows a step and rank.")
    tail: Literal["pad", "drop", "uneven"] = Field("pad", description="What becomes of the end of each rank's rows.")
    shuffle: bool = Field(False, description="In the order that --seed and --epoch give to the parts.")
    seed: Seed = 0
    epoch: Whole = Field(0, ge=0, description="Whose order, with --shuffle.")
    verify: bool = Field(False, description="Go through every batch; exit 70 unless each row is read exactly once.")
    as_json: bool = Field(False, description="One JSON object instead of tables.", json_schema_extra={"flag": "--json"})
    endpoint_url: EndpointUrl = None


class DevicesConfig(Config):
    """What there is to train on, and from which size on a GPU pays."""

    verb: ClassVar[str] = "devices"
    bench: bool = Field(
        False, description="Time additions, multiplications and a baseline step over sizes 2^0 to 2^27."
    )
    max_exponent: Whole = Field(27, ge=0, le=30, description="Largest size of the bench, as a power of two.")
    out: str | None = Field(None, description="Folder for the bench's table and plot, local or s3://.")
    endpoint_url: EndpointUrl = None


class CacheConfig(Config):
    """Shows, checks or empties the cache of decoded parts on this machine."""

    verb: ClassVar[str] = "cache"
    action: Literal["ls", "verify", "clear"] = Field(
        description="ls lists the entries; verify checks all, removes damaged ones, then exits 3; clear removes all.",
        json_schema_extra=Argument,
    )
    cache_dir: Annotated[str | None, BeforeValidator(_cache_folder)] = Field(
        None, description="Folder of the cache; this user's own when absent."
    )


class EngineerConfig(Config):
    """Makes the features that a spec describes, and writes them as part files."""

    verb: ClassVar[str] = "features engineer"
    src: str = Field(description="Folder or glob of part files.", json_schema_extra=Argument)
    dest: str = Field(description="Folder for the parts that are made, local or s3://.", json_schema_extra=Argument)
    spec: str = Field(
        description="TOML file; a preset (taxi, taxi-grid); or DEST/.meta/features.json of the training data, "
        "so that its fitted values serve for a test set."
    )
    label: str | None = Field(None, description="Column to predict, by name; the first one when absent.")
    columns: str | None = Field(None, description="Columns to read, comma-separated; all but the label when absent.")
    nulls: Nulls = "raise"
    endpoint_url: EndpointUrl = None

    _nulls = field_validator("nulls")(_check_nulls)


class AuditConfig(Config):
    """Asks five questions of each column of any CSV: is it a feature to learn from?"""

    verb: ClassVar[str] = "features audit"
    data: str = Field(description="Folder, glob or file of CSV, as it is: text is welcome.", json_schema_extra=Argument)
    label: str | None = Field(None, description="Column to predict, by name; the first one when absent.")
    test: str | None = Field(None, description="Test set: looks for rows that it shares with the data.")
    spec: str | None = Field(
        None, description="Feature spec or preset: compares the best linear model with and without these features."
    )
    known_late: str | None = Field(
        None, description="Columns, comma-separated, that are not known yet when a prediction is asked for."
    )
    sample_rows: int = Field(
        100_000, ge=1_000, description="Rows that relations and distinct values are taken from, chosen at random."
    )
    rare: int = Field(5, ge=2, description="A value seen fewer times than this has too few examples.")
    out: str | None = Field(None, description="Folder for report.html and summary.json, local or s3://.")
    seed: Seed = 0
    endpoint_url: EndpointUrl = None


class DemoConfig(Config):
    """The whole flow here, with an embedded S3 and no account: sample, shard, baseline, report."""

    verb: ClassVar[str] = "demo"
    out: str = Field("runs/demo", description="Local folder that receives the report.")
    rows: Whole = Field(200_000, ge=1, description="Trips to make.")
    parts: Whole = Field(12, ge=1, le=100_000, description="Part files to make.")
    iterations: Whole = Field(50, ge=1, description="Baseline's optimizer steps.")
    seed: Seed = 0
