"""The embedded store as its users meet it: from this process, and from a child that has only its environment."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

from cabrank.errors import ConfigError
from cabrank.local.store import EmbeddedStore
from cabrank.store import open_store

CHILD = """
from cabrank.store import open_store
store = open_store("s3://two")
store.put("s3://two/from-child", store.read(store.stat("s3://two/a")))
"""


def _is_open(endpoint: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", urlsplit(endpoint).port or 0)) == 0


def test_it_serves_buckets_here_and_to_children() -> None:
    with EmbeddedStore("one", "two") as embedded:
        assert embedded.make_bucket("three") == "s3://three"
        store = open_store("s3://two", embedded.storage_options)
        store.put("s3://two/a", b"hello")
        environment = {**os.environ, **embedded.environment, "PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run([sys.executable, "-W", "error", "-c", CHILD], env=environment, check=True)
        assert store.read(store.stat("s3://two/from-child")) == b"hello"
        assert list(store.list("s3://three/")) == []
        assert _is_open(embedded.endpoint_url)
    assert not _is_open(embedded.endpoint_url)


def test_a_bad_bucket_takes_it_down_again() -> None:
    embedded = EmbeddedStore("x")
    with pytest.raises(ConfigError, match="s3://x"):
        embedded.__enter__()
    assert not _is_open(embedded.endpoint_url)
