"""Which store a URI opens, with which words."""

from __future__ import annotations

import subprocess
import sys

import pytest
from botocore import UNSIGNED

from cabrank.errors import AccessError, ConfigError
from cabrank.store import Store, canonical, open_store
from cabrank.store.foreign import ForeignStore
from cabrank.store.local import LocalStore
from cabrank.store.s3 import S3Store
from cabrank.store.s3_client import make_client
from cabrank.store.web import WebStore


@pytest.mark.parametrize(
    ("uri", "kind"),
    [
        ("s3://bucket/x", S3Store), ("s3a://bucket/x", S3Store), ("S3://bucket/x", S3Store), ("x", LocalStore),
        ("file:///x", LocalStore), ("https://host/x", WebStore), ("memory://x", ForeignStore),
    ],
)  # fmt: skip
def test_each_scheme_has_its_store(uri: str, kind: type[Store]) -> None:
    assert type(open_store(uri)) is kind


def test_canonical_uris() -> None:
    assert canonical("s3a://b/k//x y%20") == "s3://b/k//x y%20"
    assert canonical("S3://b/k") == "s3://b/k"
    assert canonical("https://h/a%20b") == "https://h/a%20b"
    assert canonical("/a/../b/*.csv") == "file:///b/*.csv"


@pytest.mark.parametrize("uri", ["s3://bucket", "/tmp", "https://host/x"])
def test_an_unknown_word_is_named_with_the_known_ones(uri: str) -> None:
    with pytest.raises(ConfigError, match=r"has no 'endpoint'; it has: anon, client_kwargs, config_kwargs,"):
        open_store(uri, {"endpoint": "http://x"})


def test_one_set_of_options_serves_local_folders_too() -> None:
    options = {"anon": False, "endpoint_url": "http://x", "client_kwargs": {"region_name": "eu-west-1"}}
    assert isinstance(open_store("/tmp", options), LocalStore)
    assert isinstance(open_store("https://h/x", options), WebStore)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"key": "only half"}, "one of key and secret: give both"),
        ({"anon": "maybe"}, "anon is 'maybe': give True or False"),
        ({"client_kwargs": "eu-west-1"}, "client_kwargs is 'eu-west-1': give a mapping"),
        ({"client_kwargs": {"region": "eu-west-1"}}, "client_kwargs has no 'region'; it has: .*region_name"),
    ],
)
def test_bad_options_are_found_before_anything_is_sent(options: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        open_store("s3://bucket", options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"config_kwargs": {"timeout": 3}}, "config_kwargs.*timeout"),
        ({"endpoint_url": "localhost:9000"}, "localhost:9000"),
    ],
)
def test_what_boto_refuses(options: dict[str, object], says: str) -> None:
    with pytest.raises((ConfigError, AccessError), match=f"(?i){says}"):
        list(open_store("s3://bucket", options).list("s3://bucket/x"))


def test_an_unknown_profile() -> None:
    with pytest.raises(AccessError, match="nobody"):
        make_client({"profile": "nobody"})


def test_clients_are_made_as_asked() -> None:
    client = make_client(
        {
            "anon": "True",
            "endpoint_url": "http://localhost:9000",
            "config_kwargs": {"read_timeout": 3},
            "client_kwargs": {"verify": False},
        }
    )
    assert client.meta.endpoint_url == "http://localhost:9000"
    assert client.meta.region_name == "us-east-1"  # nothing said one
    assert client.meta.config.s3["addressing_style"] == "path"
    assert client.meta.config.read_timeout == 3
    assert client.meta.config.retries["total_max_attempts"] == 1
    assert client.meta.config.signature_version is UNSIGNED
    signed = make_client({"anon": "False", "client_kwargs": {"region_name": "eu-west-1"}})
    assert signed.meta.region_name == "eu-west-1"
    assert "amazonaws.com" in signed.meta.endpoint_url


def test_an_endpoint_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:7000")
    client = make_client({})
    assert client.meta.endpoint_url == "http://localhost:7000"
    assert client.meta.config.s3["addressing_style"] == "path"


def test_a_scheme_without_its_package() -> None:
    with pytest.raises(ConfigError, match=r"gs://bucket/x needs a package that is not installed:.*gcsfs"):
        open_store("gs://bucket/x")
    with pytest.raises(ConfigError, match="no store for nonsense://x"):
        open_store("nonsense://x")


def test_opening_a_folder_loads_no_boto() -> None:
    code = (
        "import sys; from cabrank.store import open_store; open_store('/tmp');"
        "print({'boto3', 'fsspec'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}) == b"set()\n"
