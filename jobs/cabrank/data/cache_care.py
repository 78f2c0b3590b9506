"""Looking after a cache from outside: what is in it, whether it is sound, and away with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cabrank.data.cache_entry import CorruptEntryError, check_matrix, open_file, read_footer
from cabrank.data.cache_folder import ENTRY, TEMP, CacheFolder
from cabrank.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Listed:
    """One entry, as `cabrank cache ls` and `verify` show it."""

    path: Path
    size: int
    """Bytes of the file."""
    used: float
    """Seconds since 1970 of the last use."""
    uri: str
    """Of the part; empty where the footer cannot be read."""
    rows: int
    fault: str
    """What is wrong with it; empty for a sound one."""


def entries(folder: Path, *, check: bool = False) -> list[Listed]:
    """All entries by URI; with `check`, each checksum is computed. An absent folder has none."""
    names = CacheFolder(folder).names()
    looked = (
        _look(folder / name, facts.st_size, facts.st_atime, check) for name, facts in names if name.endswith(ENTRY)
    )
    return sorted((entry for entry in looked if entry), key=lambda entry: (entry.uri, entry.path))


def _look(path: Path, size: int, used: float, check: bool) -> Listed | None:
    uri, rows = "", 0
    try:
        with open_file(path) as file:
            footer = read_footer(file)
            uri, rows = footer.uri, footer.shape[0]
            if footer.digest != path.name.removesuffix(ENTRY):
                raise CorruptEntryError("it is another part's entry")
            if check:
                check_matrix(file, footer)
    except FileNotFoundError:
        return None  # evicted since
    except (CorruptEntryError, OSError) as error:
        return Listed(path, size, used, uri, rows, str(error))
    return Listed(path, size, used, uri, rows, "")


def verify(folder: Path) -> list[Listed]:
    """Checks every entry and removes the faulty ones; all of them, the faulty with their `fault`."""
    files = _cache(folder)
    checked = entries(folder, check=True)
    for entry in checked:
        if entry.fault:
            files.remove(entry.path.name)
    return checked


def clear(folder: Path) -> int:
    """Removes all entries, and what killed processes left; fills in progress stay. The bytes freed."""
    files = _cache(folder)
    freed = 0
    for name, facts in list(files.names()):
        if not (name.endswith(TEMP) and not files.dead(name, 0)) and files.remove(name):
            freed += facts.st_size
    return freed


def _cache(folder: Path) -> CacheFolder:
    """`ConfigError` for a folder that holds anything and that no cache of ours has marked."""
    files = CacheFolder(folder)
    if folder.exists() and any(folder.iterdir()) and not files.marked():
        raise ConfigError(f"{folder} is not a cache of cabrank ({files.marker} is missing): check cache_dir")
    return files
