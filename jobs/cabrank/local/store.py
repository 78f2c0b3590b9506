"""An S3 of one's own: moto's server inside this process, on loopback and a free port."""

from __future__ import annotations

import logging
import os
from threading import Lock
from types import TracebackType
from typing import Any, ClassVar, Self

REGION = "us-east-1"
KEY = "embedded"  # and the secret: it takes any


class EmbeddedStore:
    """`with EmbeddedStore("bucket") as store:` serves S3 at `store.endpoint_url` until the block ends, and keeps its
    objects in memory. moto's state is one a process: stores that overlap in time share their buckets."""

    _entered: ClassVar[int] = 0
    """How many of them serve now."""
    _lock: ClassVar[Lock] = Lock()

    def __init__(self, *buckets: str) -> None:
        """`buckets` are made at the start; whoever needs more makes them with `make_bucket`."""
        self._buckets = buckets
        self._server: Any = None
        self.endpoint_url = ""

    def __enter__(self) -> Self:
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # one line a request, otherwise
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        self.endpoint_url = "http://{}:{}".format(*self._server.get_host_and_port())
        with self._lock:
            EmbeddedStore._entered += 1
        try:
            for bucket in self._buckets:
                self.make_bucket(bucket)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.stop()
        with self._lock:
            EmbeddedStore._entered -= 1
            if EmbeddedStore._entered == 0:
                _forget_everything()

    @property
    def storage_options(self) -> dict[str, Any]:
        """For `open_store`."""
        return {
            "endpoint_url": self.endpoint_url,
            "key": KEY,
            "secret": KEY,
            "client_kwargs": {"region_name": REGION},
        }

    @property
    def environment(self) -> dict[str, str]:
        """For child processes: everything that speaks to AWS there finds this store, and nothing of the user's own."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": KEY,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def make_bucket(self, name: str) -> str:
        """An empty bucket; its URI, without a slash at the end."""
        from cabrank.store.s3 import S3Store

        S3Store(self.storage_options).make_bucket(name)
        return f"s3://{name}"


def _forget_everything() -> None:
    """Objects lie in temporary files, which moto otherwise leaves to the garbage collector, with a warning each."""
    from moto.s3.models import s3_backends

    for account in list(s3_backends.values()):
        for backend in list(account.values()):
            backend.reset()
