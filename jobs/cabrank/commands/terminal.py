"""What the jobs show people: a progress bar and tables on a terminal, one JSON line otherwise (CloudWatch, pipes)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


@contextmanager
def progress(title: str, rows: int | None = None, parts: int | None = None) -> Iterator[Callable[[int, int], None]]:
    """Gives `advance(rows, parts)`. On a terminal it moves a bar with rows/s and the time left, towards `rows`, or
    towards `parts` where the rows are not known yet; elsewhere it does nothing."""
    if not sys.stdout.isatty():
        yield lambda _rows, _parts: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f} {task.fields[unit]}"),
        TextColumn("{task.fields[rate]:,.0f} rows/s"),
        TimeRemainingColumn(),
        TimeElapsedColumn(),
    ) as bar:
        unit, total = ("rows", rows) if rows is not None else ("parts", parts)
        task = bar.add_task(title, total=total, unit=unit, rate=0.0)
        seen = 0

        def advance(more_rows: int, more_parts: int) -> None:
            nonlocal seen
            seen += more_rows
            rate = seen / max(bar.tasks[0].elapsed or 0.0, 1e-3)
            bar.update(task, advance=more_rows if unit == "rows" else more_parts, rate=rate)

        yield advance


def show(record: Mapping[str, Any], *tables: Table) -> None:
    """Prints `tables` on a terminal, `record` as one JSON line elsewhere."""
    if sys.stdout.isatty():
        from rich.console import Console

        console = Console()
        for table in tables:
            console.print(table)
    else:
        print(json.dumps(record), flush=True)  # noqa: T201
