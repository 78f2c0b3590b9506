"""What a person, or a log service, sees of a running job: bars on a terminal, JSON lines everywhere else.

    with track("counting", total=rows, unit="rows") as advance:   # any job that works through a known amount
        advance(4096)
    with steps(total=50) as report:                               # a job that trains
        report(step)

A terminal gets a bar with rate and time left. Anything else (a pipe, a file, CloudWatch) gets no control characters:
`steps` prints one JSON object a step, `track` one every ten seconds and one at the end.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import typer

WIDEST = 1 << 16  # characters of a table's line; its cells are URIs at most
JSON_EVERY_SECONDS = 10.0  # often enough to see that a job lives, seldom enough not to fill a log


class StepLike(Protocol):
    """What a step reporter reads of a step; `cabrank.train.metrics.Step` is one."""

    @property
    def step(self) -> int: ...
    @property
    def mse(self) -> float: ...
    @property
    def rows(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def rows_per_second(self) -> float: ...
    @property
    def gradient_norm(self) -> float: ...


def say(line: str = "") -> None:
    """One plain line for the user, on stdout, at once."""
    typer.echo(line)
    sys.stdout.flush()


def counted(number: int, noun: str) -> str:
    """`1 row`, `2,000 rows`: the number, and the noun in the form that it asks for."""
    plural = noun[:-1] + "ies" if noun.endswith("y") else noun + "es" if noun.endswith(("ch", "s")) else noun + "s"
    return f"{number:,} {noun if number == 1 else plural}"


def json_line(values: Mapping[str, object]) -> str:
    """Compact JSON on one line, with `json_safe` values."""
    return json.dumps(json_safe(values), separators=(",", ":"), allow_nan=False)


def json_safe(values: Mapping[str, object]) -> dict[str, object]:
    """The same mapping with NaN and infinity as None: JSON has no word for them, and most readers refuse Python's."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A small table on stdout: the first column left-aligned, the others right-aligned. As wide as it needs to be: a
    narrow terminal wraps its lines, and a name in it can still be copied whole."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    drawn = Table(title=title or None, box=box.SIMPLE_HEAD, title_justify="left")
    for index, name in enumerate(header):
        drawn.add_column(name, justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        drawn.add_row(*row)
    Console(markup=False, highlight=False, width=WIDEST).print(drawn, soft_wrap=True)


@contextmanager
def track(description: str, total: int | None, unit: str = "rows") -> Iterator[Callable[[int], None]]:
    """Progress through `total` units (None: unknown). Yields the function that takes how many more are done."""
    if sys.stdout.isatty():
        with _bar(description, total, f" {unit}/s") as (progress, task):
            yield lambda done: progress.update(task, advance=done)
        return
    start = last = time.monotonic()
    done = 0

    def advance(more: int) -> None:
        nonlocal done, last
        done += more
        now = time.monotonic()
        if now - last >= JSON_EVERY_SECONDS:
            last = now
            say(_progress_line(description, unit, done, total, now - start))

    yield advance
    say(_progress_line(description, unit, done, done, time.monotonic() - start))  # a total may have been a guess


@contextmanager
def steps(total: int) -> Iterator[Callable[[StepLike], None]]:
    """Reports optimizer steps: the field's line for each, beside a bar on a terminal, before a JSON line elsewhere."""
    if not sys.stdout.isatty():
        yield _print_step
        return
    with _bar("training", total, " steps/s", note="") as (progress, task):

        def report(step: StepLike) -> None:
            progress.console.print(step_line(step), soft_wrap=True)
            note = f"{step.rows_per_second:,.0f} rows/s, MSE {step.mse:.4g}"
            progress.update(task, completed=step.step + 1, note=note)

        yield report


def step_line(step: StepLike) -> str:
    """The line that jobs of this kind have always printed, so that what parses it goes on working."""
    return f"Iteration: {step.step:03d}, Seconds/Iteration: {step.seconds:.3f} MSE: {step.mse:.2f}"


def _print_step(step: StepLike) -> None:
    say(step_line(step))
    names = ("step", "mse", "rows", "seconds", "rows_per_second", "gradient_norm")
    say(json_line({name: getattr(step, name) for name in names}))


def _progress_line(description: str, unit: str, done: int, total: int | None, seconds: float) -> str:
    rate = done / max(seconds, 1e-9)
    return json_line(
        {
            "phase": description,
            unit: done,
            "total": total,
            "seconds": round(seconds, 3),
            f"{unit}_per_second": round(rate),
        }
    )


@contextmanager
def _bar(description: str, total: int | None, rate: str, note: str | None = None) -> Iterator[tuple[Any, Any]]:
    """A bar that shows what is done, the rate or the caller's note, and the time left."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    rates = TextColumn("{task.fields[note]}") if note is not None else _rate_column(rate)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), rates, TimeRemainingColumn())
    with Progress(*columns, console=Console(markup=False, highlight=False)) as progress:
        yield progress, progress.add_task(description, total=total, note=note)


def _rate_column(unit: str) -> Any:
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text("" if task.speed is None else f"{task.speed:,.0f}{unit}")

    return Rate()
