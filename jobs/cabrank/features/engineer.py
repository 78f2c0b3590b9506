"""A spec at work: bound to a table's columns it turns matrices [n, C] into matrices [n, C'], and fits to data first.

    Spec ─► fit (streaming, on the training data alone) ─► Spec without blanks ─► bind(columns) ─► Engineered
                                                               JSON                 matrix [n, C] → [n, C']

The same object serves CSV written out and tensors made on the fly. Column 0, the label, passes on unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cabrank.errors import ConfigError, SchemaError
from cabrank.features.spec import Spec
from cabrank.features.steps import Matrix, Step
from cabrank.store import StorageOptions

STRIP_ROWS = 2_048  # at a time: 73 columns of them stay in the second-level cache, which is several times as fast


@dataclass
class Engineered:
    """Steps bound to the columns of a matrix. Call it with [n, C]; `columns` names what comes back."""

    source: tuple[str, ...]
    """Names of the columns that go in."""
    passing: tuple[str, ...]
    """Of those, what passes on as it is: the label first, where there is one."""
    steps: tuple[Step, ...]
    drop: frozenset[str] = frozenset()
    outside: Counter[str] = field(default_factory=Counter)
    """By column, the values so far that lay outside of what was fitted."""

    def __post_init__(self) -> None:
        wanted = {name for step in self.steps for name in step.inputs}
        names = [step.outputs for step in self.steps]
        self._stay = [[i for i, name in enumerate(made) if name not in self.drop] for made in names]
        self._read_later = [[(i, name) for i, name in enumerate(made) if name in wanted] for made in names]
        self.columns = (*self.passing, *(name for made in names for name in made if name not in self.drop))
        """Names of the columns that come back."""

    def __call__(self, matrix: npt.NDArray[np.floating]) -> Matrix:
        """[n, C] → [n, C'], float64; the rows keep their places, and none depends on another."""
        made = np.empty((len(matrix), len(self.columns)))
        for start in range(0, len(matrix), STRIP_ROWS):
            strip = matrix[start : start + STRIP_ROWS]
            known, blocks = self._run(strip, self.outside)
            kept = [known[name][:, None] for name in self.passing]
            for stay, block in zip(self._stay, blocks, strict=True):
                kept.append(block if len(stay) == block.shape[1] else block[:, stay])
            np.concatenate(kept, axis=1, out=made[start : start + STRIP_ROWS])
        return made

    def named(self, matrix: npt.NDArray[np.floating], names: Sequence[str]) -> dict[str, Matrix]:
        """Columns [n] by name: of the data, or what the steps make. Counts nothing."""
        known, blocks = self._run(matrix, Counter())
        for step, block in zip(self.steps, blocks, strict=True):
            known |= {name: block[:, index] for index, name in enumerate(step.outputs) if name in names}
        return {name: known[name] for name in names}

    def _run(self, matrix: npt.NDArray[np.floating], outside: Counter[str]) -> tuple[dict[str, Matrix], list[Matrix]]:
        known = {
            name: np.ascontiguousarray(matrix[:, index], dtype=np.float64) for index, name in enumerate(self.source)
        }
        blocks = []
        for step, used in zip(self.steps, self._read_later, strict=True):
            block = step.apply([known[name] for name in step.inputs], outside)
            blocks.append(block)
            known |= {name: np.ascontiguousarray(block[:, index]) for index, name in used}
        return known, blocks


@dataclass(frozen=True)
class Features:
    """A spec without blanks. Give it to `ObjectStorageDataset(features=…)`, or bind it yourself."""

    spec: Spec

    def __post_init__(self) -> None:
        blank = [step for step in self.spec.step if step.need is not None]
        if blank:
            raise ConfigError(
                f"the features are not fitted: {', '.join(sorted({step.kind for step in blank}))} take values from "
                "the training data; fit them with cabrank features engineer, or cabrank.features.fitting.fit_features, "
                "and use the JSON file"
            )

    @classmethod
    def read(cls, name: str, storage_options: StorageOptions | None = None) -> Features:
        """From a fitted JSON file, or a spec that has nothing to fit."""
        return cls(Spec.read(name, storage_options))

    def bind(self, columns: Sequence[str], *, label: bool = True) -> Engineered:
        """For matrices of these columns, the first of which is the label unless `label` is False (at inference).

        `ConfigError` for a column that a step needs and the data lacks, where the spec was fitted a `SchemaError`; also
        for a step that reads the label, and for two columns of one name."""
        features, spec = list(columns[int(label) :]), self.spec
        passing = unread(spec, features) if spec.keep is None else spec.keep
        lack = SchemaError if spec.fitted_to else ConfigError
        check_keep(passing, features, lack)
        known = list(features)
        for number, step in enumerate(spec.step, 1):
            for name in step.inputs:
                check_input(name, f"step {number}", known, columns[0] if label else None, lack)
            known += step.outputs
        out = Engineered(tuple(columns), (*columns[: int(label)], *passing), spec.step, frozenset(spec.drop))
        _check_names(out, known[len(features) :])
        return out


def unread(spec: Spec, features: Sequence[str]) -> tuple[str, ...]:
    """The data's columns that no step reads: what passes on when the spec does not say."""
    read = {name for step in spec.step for name in step.inputs}
    return tuple(name for name in features if name not in read)


def check_keep(keep: Sequence[str], features: Sequence[str], lack: type[ConfigError | SchemaError]) -> None:
    """That the columns which shall pass on are there."""
    for name in keep:
        if name not in features:
            raise lack(f"keep names {name!r}, and there is no such column; there are: {', '.join(features)}")


def check_input(
    name: str, who: str, known: Sequence[str], label: str | None, lack: type[ConfigError | SchemaError]
) -> None:
    """That a step can have this column."""
    if name == label:
        raise ConfigError(f"{who} reads {name!r}, which is the label: a model would be told what it is to find out")
    if name not in known:
        shown = ", ".join(known[:40]) + (", …" if len(known) > 40 else "")
        raise lack(f"{who} reads the column {name!r}, and there is none; there are: {shown}")


def _check_names(out: Engineered, made: Sequence[str]) -> None:
    twice = [name for name, count in Counter([*out.source, *made]).items() if count > 1]
    if twice:
        raise ConfigError(f"two columns would be called {twice[0]!r}: take one step less, or give a distance a name")
    unknown = sorted(out.drop - set(made))
    if unknown:
        shown = ", ".join(made[:40]) + (", …" if len(made) > 40 else "")
        raise ConfigError(f"drop names {unknown[0]!r}, which no step makes; they make: {shown}")
