"""What `--nulls` and `nulls=` mean, below the rooms: configuration checks the words and parsing acts on them.

raise                    for all columns
drop,tip:fill=0,hour:raise   drop the row, but fill in a tip and insist on an hour
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from cabrank.errors import ConfigError

RULE = (
    "it must be raise, drop or fill=VALUE with a finite number, and for single columns COLUMN:raise and so on, "
    "all joined by commas: drop,tip:fill=0"
)


@dataclass(frozen=True, slots=True)
class NullPolicy:
    """What becomes of an empty field, a NaN or an infinity: `raise`, `drop` its row, or `fill` in a number."""

    action: Literal["raise", "drop", "fill"] = "raise"
    value: float = 0.0
    exceptions: tuple[tuple[str, NullPolicy], ...] = ()
    """Columns with a policy of their own, by name; `action` and `value` are those of all others."""

    @classmethod
    def of(cls, text: str) -> NullPolicy:
        """From `raise`, `drop` or `fill=VALUE`, which is `raise` where only columns are named, and `COLUMN:POLICY` for
        exceptions, joined by commas; `ConfigError` for anything else."""
        named: dict[str, NullPolicy] = {}
        for item in text.split(","):
            name, _, words = item.strip().rpartition(":")
            policy = _single(words)
            if policy is None or name in named or (not name and item.strip() != words):
                raise ConfigError(f"nulls is {text!r}: {RULE}")
            named[name] = policy
        default = named.pop("", cls())
        return cls(default.action, default.value, tuple(sorted(named.items(), key=lambda item: item[0])))

    def of_column(self, name: str) -> NullPolicy:
        """The policy of one column."""
        return next((policy for exception, policy in self.exceptions if exception == name), self)

    @property
    def fills(self) -> bool:
        """Whether any column may hold numbers that stand in no part."""
        return "fill" in {self.action, *(policy.action for _, policy in self.exceptions)}

    def check(self, columns: Collection[str], largest: float) -> None:
        """`ConfigError` unless all exceptions are among `columns`, and what is filled in is at most `largest`."""
        for name, _ in self.exceptions:
            if name not in columns:
                raise ConfigError(f"nulls names the column {name!r}; there are: {', '.join(columns)}")
        for policy in (self, *(policy for _, policy in self.exceptions)):
            if policy.action == "fill" and abs(policy.value) > largest:
                raise ConfigError(f"nulls fills in {policy.value!r}, which is too large for the dtype")


def _single(words: str) -> NullPolicy | None:
    word, _, number = words.partition("=")
    if words in ("raise", "drop"):
        return NullPolicy("raise" if words == "raise" else "drop")
    if word == "fill" and (value := _finite(number)) is not None:
        return NullPolicy("fill", value)
    return None


def _finite(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in text else None  # Python alone reads 1_000 as a number
