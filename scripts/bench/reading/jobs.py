"""Readers in processes of their own, asked one job at a time over pipes: one line of JSON there, one back.

Nothing but the standard library in here: the peers' environment has no cabrank.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

LIMIT_SECONDS = 180.0
"""What one job may take before its process is ended."""


@dataclass(frozen=True)
class Job:
    """What to read, and in batches of how many rows."""

    reader: str
    folder: str
    """A path, or an s3:// URI; the endpoint and the credentials stand in the environment."""
    names: list[str]
    """Of the parts in it, in order."""
    rows: int
    """Of all parts."""
    batch: int
    threads: int
    scratch: str
    """A folder of the reader's own, kept from job to job."""

    @property
    def uris(self) -> list[str]:
        """Of the parts."""
        return [f"{self.folder}/{name}" for name in self.names]

    @property
    def remote(self) -> bool:
        """Whether a store has to be asked."""
        return self.folder.startswith("s3://")


@dataclass(frozen=True)
class Timing:
    """One run of a reader."""

    label: str
    rows: int
    seconds: float


Run = Callable[[], int]
"""What is timed; returns how many rows it has read."""
Reader = Callable[[Job], Iterator[tuple[str, Run]]]
"""Yields labels and runs, each timed before the next is asked for; what it does between them is not."""


def serve(readers: Mapping[str, Reader]) -> None:
    """Answers jobs until stdin ends. Whatever a library prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        job = Job(**json.loads(line))
        try:
            answer: dict[str, object] = {"timings": [asdict(one) for one in timed(readers[job.reader](job))]}
        except Exception as error:  # noqa: BLE001 - peers raise what they like, and the others go on
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
        print(json.dumps(answer), file=answers, flush=True)


def timed(runs: Iterator[tuple[str, Run]]) -> Iterator[Timing]:
    """Each run's rows and seconds."""
    for label, run in runs:
        start = time.perf_counter()
        rows = run()
        yield Timing(label, rows, time.perf_counter() - start)


class FailedError(Exception):
    """A reader that cannot be had, and why."""


class Process:
    """A process that serves jobs: `python -m module` with `environment` added. Use it in a `with`."""

    def __init__(self, python: str, module: str, environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        with log.open("ab") as stderr:
            self._child = subprocess.Popen(
                [python, "-m", module],
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,  # a reader's own processes are in it and end with it
            )

    def ask(self, job: Job) -> list[Timing]:
        """What the job's reader took. `FailedError` with its reason."""
        child = self._child
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(json.dumps(asdict(job)) + "\n")
            child.stdin.flush()
        except BrokenPipeError:
            raise FailedError("its process has ended") from None
        if not select.select([child.stdout], [], [], LIMIT_SECONDS)[0]:
            self._end()
            raise FailedError(f"took longer than {LIMIT_SECONDS:.0f} s")
        line = child.stdout.readline()
        if not line:
            raise FailedError(f"its process ended with status {child.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise FailedError(answer["error"])
        return [Timing(**one) for one in answer["timings"]]

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._end()
        self._child.stdout.close()
        with suppress(BrokenPipeError):
            self._child.stdin.close()

    def _end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
