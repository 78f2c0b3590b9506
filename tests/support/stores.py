"""Stores for tests: a fresh bucket on moto's server or on SeaweedFS, and a way around cabrank to look into it."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from cabrank.store import ObjectInfo, Store, open_store


@cache
def _client(endpoint_url: str) -> Any:
    session = boto3.Session("test", "test", region_name="us-east-1")
    return session.client("s3", endpoint_url=endpoint_url, config=Config(s3={"addressing_style": "path"}))


@dataclass
class Bucket:
    """A bucket, and how to reach it."""

    name: str
    endpoint_url: str

    @property
    def client(self) -> Any:
        """boto3's own, for what tests do behind cabrank's back."""
        return _client(self.endpoint_url)

    @property
    def storage_options(self) -> dict[str, Any]:
        """For `open_store`."""
        return {
            "endpoint_url": self.endpoint_url,
            "key": "test",
            "secret": "test",
            "client_kwargs": {"region_name": "us-east-1"},
        }

    def make(self) -> Bucket:
        """Creates it."""
        self.client.create_bucket(Bucket=self.name)
        return self

    def empty(self) -> None:
        """Removes what it holds."""
        while items := self.client.list_objects_v2(Bucket=self.name).get("Contents"):
            self.client.delete_objects(
                Bucket=self.name, Delete={"Objects": [{"Key": item["Key"]} for item in items], "Quiet": True}
            )

    @property
    def uri(self) -> str:
        """`s3://name`."""
        return f"s3://{self.name}"

    @cached_property
    def store(self) -> Store:
        """One on it."""
        return open_store(self.uri, self.storage_options)

    def put(self, key: str, data: bytes) -> ObjectInfo:
        """An object, put by boto3 itself; what a listing would say of it."""
        answer = self.client.put_object(Bucket=self.name, Key=key, Body=data)
        return ObjectInfo(f"{self.uri}/{key}", len(data), answer["ETag"].strip('"'))

    def get(self, key: str) -> bytes:
        """Its bytes, read by boto3 itself."""
        body: bytes = self.client.get_object(Bucket=self.name, Key=key)["Body"].read()
        return body

    def keys(self) -> list[str]:
        """The first thousand, as boto3 lists them."""
        return [item["Key"] for item in self.client.list_objects_v2(Bucket=self.name).get("Contents", [])]


def weed() -> str | None:
    """SeaweedFS's binary: beside this Python, or on the path."""
    beside = Path(sys.executable).with_name("weed")
    return str(beside) if beside.exists() else shutil.which("weed")


@contextmanager
def seaweedfs(binary: str, folder: Path) -> Iterator[str]:
    """Serves S3 from `folder`; the endpoint. Ended by its process id."""
    master, volume, filer, s3 = (_free_port() for _ in range(4))
    command = [binary, "-logtostderr=true", "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    command += [f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}", "-s3", f"-s3.port={s3}"]
    command += ["-master.telemetry=false", "-volume.max=4000", "-master.volumeSizeLimitMB=64"]
    command += ["-s3.iam=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    environment = {**os.environ, "HOME": str(folder)}
    endpoint = f"http://127.0.0.1:{s3}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)
        try:
            _wait_for(endpoint, process, folder / "log")
            yield endpoint
        finally:
            process.send_signal(signal.SIGKILL)  # it takes ten seconds to go down nicely, and its data is ours
            process.wait()


def _free_port() -> int:
    """A port that is free, and so is that 10,000 above it, where SeaweedFS listens for gRPC."""
    for port in random.sample(range(20_000, 32_000), 200):
        with socket.socket() as low, socket.socket() as high:
            try:
                low.bind(("127.0.0.1", port))
                high.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port")


def _wait_for(endpoint: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until the gateway can make a bucket: it answers before its filer is there."""
    bucket = urllib.request.Request(f"{endpoint}/ready", method="PUT")
    for _ in range(600):
        try:
            urllib.request.urlopen(bucket, timeout=5).close()
            return
        except OSError:
            if process.poll() is not None:
                break
            time.sleep(0.05)
    raise RuntimeError(f"SeaweedFS did not start:\n{log.read_text()[-2000:]}")
