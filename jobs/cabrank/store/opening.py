"""From a URI to the store it lives in, and to its canonical form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cabrank.errors import ConfigError
from cabrank.store import StorageOptions, Store

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://")

S3_WORDS = ("anon", "client_kwargs", "config_kwargs", "endpoint_url", "key", "profile", "secret", "token")
"""s3fs's options that we know. One set of options may serve a job's local and S3 folders alike, so that stores which
have no use for these words accept them, and no others."""


def scheme_of(uri: str) -> str:
    """`s3`, `https`, …, in lower case; `file` for a plain path."""
    match = _SCHEME.match(uri)
    return match[1].lower() if match else "file"


def canonical_by_scheme(uri: str) -> str:
    """`file:///abs/path` for files and plain paths (`~` and relative ones resolved, a trailing slash kept); `s3://` for
    `s3a://` and `s3n://`, where a bucket alone is its root, `s3://bucket/`; anything else to the letter. Globs go
    through unharmed."""
    scheme = scheme_of(uri)
    if scheme == "file":
        from cabrank.store.local import canonical_file

        return canonical_file(uri)
    if scheme in ("s3", "s3a", "s3n"):
        bucket, slash, key = uri[uri.index("://") + 3 :].partition("/")
        return f"s3://{bucket}/{key}" if slash or bucket else "s3://"
    return uri


def open_by_scheme(uri: str, options: StorageOptions) -> Store:
    """The store of `uri`; `ConfigError` for options or schemes that nobody here knows."""
    scheme = scheme_of(uri)
    known = dict(options)
    if scheme == "file":
        from cabrank.store.local import LocalStore

        check_words(known, S3_WORDS)
        return LocalStore()
    if scheme in ("s3", "s3a", "s3n"):
        from cabrank.store.s3 import S3Store

        return S3Store(known)
    if scheme in ("http", "https"):
        from cabrank.store.web import WebStore

        check_words(known, (*S3_WORDS, "headers"))
        return WebStore(known.get("headers"))
    from cabrank.store.foreign import ForeignStore

    return ForeignStore(uri, known)


def check_words(options: Mapping[str, Any], known: tuple[str, ...], what: str = "storage_options") -> None:
    """`ConfigError` where `options` has a word that is not `known`."""
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ConfigError(f"{what} has no {', '.join(map(repr, unknown))}; it has: {', '.join(sorted(known))}")
