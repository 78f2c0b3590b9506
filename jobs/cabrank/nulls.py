"""What `--nulls` and `nulls=` mean, below the rooms: configuration checks the words and parsing acts on them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from cabrank.errors import ConfigError

RULE = "it must be raise, drop or fill=VALUE with a finite number"


@dataclass(frozen=True, slots=True)
class NullPolicy:
    """What becomes of an empty field, a NaN or an infinity: `raise`, `drop` its row, or `fill` in a number."""

    action: Literal["raise", "drop", "fill"] = "raise"
    value: float = 0.0

    @classmethod
    def of(cls, text: str) -> NullPolicy:
        """From `raise`, `drop` or `fill=VALUE`; `ConfigError` for anything else."""
        word, _, number = text.partition("=")
        if text in ("raise", "drop"):
            return cls("raise" if text == "raise" else "drop")
        if word == "fill" and (value := _finite(number)) is not None:
            return cls("fill", value)
        raise ConfigError(f"nulls is {text!r}: {RULE}")


def _finite(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in text else None  # Python alone reads 1_000 as a number
