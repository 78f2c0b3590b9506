"""`cabrank cache ls|verify|clear`: what the cache of decoded parts holds here, whether it is sound, and away with
it."""

from __future__ import annotations

import time

from cabrank.config import CacheConfig
from cabrank.console import counted, say, table
from cabrank.data.cache import DecodedCache
from cabrank.data.cache_care import Listed, clear, entries, verify
from cabrank.errors import ConfigError, DataError, StorageError


def run(config: CacheConfig) -> None:
    """Does what `config.action` says. `DataError` when `verify` found damage, `ConfigError` for a folder that is no
    cache, `StorageError` for one that cannot be read."""
    cache = DecodedCache(config.cache_dir)
    try:
        if not cache.folder.exists():
            say(f"{cache.folder}: there is no cache here; the first job that uses it makes it")
            return
        if not cache.folder.is_dir():
            raise ConfigError(f"--cache-dir is {str(cache.folder)!r}, which is no folder: name the folder of a cache")
        {"ls": _list, "verify": _verify, "clear": _clear}[config.action](cache)
    except OSError as error:
        raise StorageError(f"the cache {cache.folder} cannot be used: {error}; check its permissions") from error


def _list(cache: DecodedCache) -> None:
    found = entries(cache.folder)
    now = time.time()
    rows = [(e.uri or e.fault, f"{e.rows:,}", f"{e.size:,}", _ago(now - e.used)) for e in found]
    if found:
        table("", ("part", "rows", "bytes", "last used"), rows)
    say(f"{_sum(cache, found)}; a job may fill {counted(cache.limit(), 'byte')} by default")


def _sum(cache: DecodedCache, found: list[Listed]) -> str:
    return f"{cache.folder}: {counted(len(found), 'entry')}, {counted(sum(entry.size for entry in found), 'byte')}"


def _ago(seconds: float) -> str:
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.0f} {name} ago"
    return f"{max(seconds, 0):.0f} s ago"


def _verify(cache: DecodedCache) -> None:
    checked = verify(cache.folder)
    faulty = [entry for entry in checked if entry.fault]
    for entry in faulty:
        say(f"{entry.path} ({entry.uri or 'part unknown'}): {entry.fault}; removed")
    if faulty:
        raise DataError(f"{cache.folder}: {len(faulty)} of {counted(len(checked), 'entry')} damaged: check the disk")
    say(f"{_sum(cache, checked)}, all sound")


def _clear(cache: DecodedCache) -> None:
    say(f"{cache.folder}: {counted(clear(cache.folder), 'byte')} freed")
