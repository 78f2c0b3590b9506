"""`cabrank cache ls|verify|clear`: what the cache of decoded parts holds here, whether it is sound, and away with
it."""

from __future__ import annotations

import time

import typer
from rich.console import Console
from rich.table import Table

from cabrank.config import CacheConfig
from cabrank.data.cache import DecodedCache
from cabrank.data.cache_care import clear, entries, verify
from cabrank.errors import DataError, StorageError


def run(config: CacheConfig) -> None:
    """Does what `config.action` says. `DataError` when `verify` found damage, `ConfigError` for a folder that is no
    cache, `StorageError` for one that cannot be read."""
    cache = DecodedCache(config.cache_dir)
    try:
        {"ls": _list, "verify": _verify, "clear": _clear}[config.action](cache)
    except OSError as error:
        raise StorageError(f"the cache {cache.folder} cannot be used: {error}; check its permissions") from error


def _list(cache: DecodedCache) -> None:
    found = entries(cache.folder)
    table = Table("part", box=None, pad_edge=False)
    for name in ("rows", "bytes", "last used"):
        table.add_column(name, justify="right")
    for entry in found:
        table.add_row(entry.uri or entry.fault, f"{entry.rows:,}", f"{entry.size:,}", _ago(time.time() - entry.used))
    if found:
        Console(soft_wrap=True, markup=False, highlight=False).print(table)
    total = sum(entry.size for entry in found)
    typer.echo(f"{cache.folder}: {len(found):,} entries, {total:,} bytes; a job may fill {cache.limit():,} by default")


def _ago(seconds: float) -> str:
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.0f} {name} ago"
    return f"{max(seconds, 0):.0f} s ago"


def _verify(cache: DecodedCache) -> None:
    checked = verify(cache.folder)
    faulty = [entry for entry in checked if entry.fault]
    for entry in faulty:
        typer.echo(f"{entry.path} ({entry.uri or 'part unknown'}): {entry.fault}; removed")
    if faulty:
        raise DataError(f"{len(faulty)} of {len(checked)} entries of {cache.folder} were damaged: check the disk")
    typer.echo(f"{cache.folder}: {len(checked):,} entries, {sum(entry.size for entry in checked):,} bytes, all sound")


def _clear(cache: DecodedCache) -> None:
    typer.echo(f"{cache.folder}: {clear(cache.folder):,} bytes freed")
