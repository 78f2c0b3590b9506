"""Which objects are parts: a folder's data files or what a glob names, each with the number in its name.

No parts are: names that start with `_` or `.` (also as folders below the pattern: `.meta/`, `_temporary/`), `.crc`
files, and empty objects. A listing is asked of the store each time, never remembered.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass

from cabrank.errors import NoDataError, ObjectMissingError
from cabrank.store import ObjectInfo, Store, canonical

MAGIC = re.compile(r"[*?\[{]")
NUMBER = re.compile(r"part-(\d+)")
ENDINGS = (".csv", ".csv.gz", ".csv.zst", ".parquet")


@dataclass(frozen=True, slots=True)
class Part:
    """One part file: its bytes, pinned, and the number in its name."""

    info: ObjectInfo
    number: int | None
    """From `part-00007-….csv`: joins the part to its metadata; None when the name has no number."""

    @classmethod
    def of(cls, info: ObjectInfo) -> Part:
        """The part that an object is."""
        found = NUMBER.match(info.uri.rpartition("/")[2])
        return cls(info, int(found.group(1)) if found else None)

    @property
    def uri(self) -> str:
        """Canonical."""
        return self.info.uri

    @property
    def folder(self) -> str:
        """URI of the folder, with the slash at its end."""
        return self.info.uri.rpartition("/")[0] + "/"

    @property
    def name(self) -> str:
        """The last component of the URI."""
        return self.info.uri.rpartition("/")[2]

    @property
    def size(self) -> int | None:
        """Bytes."""
        return self.info.size


def list_parts(glob: str, store: Store) -> list[Part]:
    """The parts that `glob` names, ordered by the UTF-8 bytes of their URIs.

    `glob` is a file, a folder (its own data files, not those of folders below it), or a pattern of `*`, `?`, `[…]`,
    `{a,b}` (none crosses a slash) and `**` (which does), of files or of folders. A pattern that matches nothing may
    still be a name. `NoDataError` says what was there instead when nothing is a part.
    """
    uri = canonical(glob)
    objects = _matching(uri, store)
    parts = [Part.of(info) for info in objects if info.size != 0]
    if parts:
        return sorted(parts, key=lambda part: part.uri.encode())
    if objects:
        raise NoDataError(f"{uri}: matches {len(objects)} objects, and all are empty (the first: {objects[0].uri})")
    raise NoDataError(
        f"{uri}: matches no part file{_neighbours(uri, store)}; check the path, or make data with cabrank sample"
    )


def _matching(uri: str, store: Store) -> list[ObjectInfo]:
    """Objects that `uri` names and that are not hidden, empty ones included."""
    if MAGIC.search(uri) is None:
        return _literal(uri, store)
    folders = uri.removesuffix("/") + "/*"
    return _globbed(uri, store) or [i for i in _globbed(folders, store) if is_data(i.uri)] or _literal(uri, store)


def _literal(uri: str, store: Store) -> list[ObjectInfo]:
    """The object of this name, or else the data files in the folder of this name."""
    if not uri.endswith("/"):
        with suppress(ObjectMissingError):
            return [store.stat(uri)]
    folder = uri.removesuffix("/") + "/"
    inside = (info for info in store.list(folder) if "/" not in info.uri[len(folder) :])
    return [info for info in inside if not hidden(info.uri, folder) and is_data(info.uri)]


def _globbed(uri: str, store: Store) -> list[ObjectInfo]:
    magic = MAGIC.search(uri)
    pattern, prefix = glob_regex(uri), uri[: magic.start() if magic else len(uri)]
    base = prefix[: prefix.rfind("/") + 1]
    return [info for info in store.list(prefix) if pattern.fullmatch(info.uri) and not hidden(info.uri, base)]


def is_data(uri: str) -> bool:
    """Whether a file in a folder is meant as data: by its ending, or since it is called part-00007-…"""
    name = uri.rpartition("/")[2]
    return name.lower().endswith(ENDINGS) or NUMBER.match(name) is not None


def hidden(uri: str, base: str) -> bool:
    """Whether a component of `uri` below the folder `base` marks it as no part."""
    below = uri[len(base) :].split("/")
    return any(name.startswith(("_", ".")) for name in below) or below[-1].endswith(".crc")


def glob_regex(glob: str) -> re.Pattern[str]:
    """A glob as a regular expression over whole URIs."""
    out, at, depth = "", 0, 0
    while at < len(glob):
        char = glob[at]
        if glob.startswith("**/", at):
            out, at = out + "(?:.*/)?", at + 3
            continue
        if glob.startswith("**", at):
            out, at = out + ".*", at + 2
            continue
        closing = glob.find("]", at + 2) if char == "[" else -1
        if closing > 0:
            inner = re.sub(r"([\\\[&~|])", r"\\\1", glob[at + 1 : closing])
            inner = "^" + inner[1:] if inner.startswith("!") else inner
            out, at = out + f"[{inner}]", closing + 1
            continue
        if char == "{" and "}" in glob[at:]:
            out, depth = out + "(?:", depth + 1
        elif char == "}" and depth:
            out, depth = out + ")", depth - 1
        elif char == "," and depth:
            out += "|"
        else:
            out += {"*": "[^/]*", "?": "[^/]"}.get(char) or re.escape(char)
        at += 1
    return re.compile(out, re.DOTALL)


def _neighbours(uri: str, store: Store) -> str:
    """What lies nearest to a pattern that matched nothing, for the error's reader."""
    magic = MAGIC.search(uri)
    base = uri[: magic.start()] if magic else uri.rstrip("/") + "/"
    base = base[: base.rfind("/") + 1]
    names: list[str] = []
    for info in store.list(base):
        if not hidden(info.uri, base):
            names.append(info.uri[len(base) :])
        if len(names) == 3:
            break
    return f" ({base} holds {', '.join(map(repr, names))}, …)" if names else f" ({base} holds nothing)"
