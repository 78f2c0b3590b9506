"""Real processes over gloo on loopback, started once and given many tasks: importing torch costs seconds a process."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from processes import fork_server

Task = Callable[..., Any]
"""`task(peers_of, *arguments)`: a module-level function; `peers_of[n]` are the `Peers` of the first n ranks."""


class Crew:
    """`size` processes, each a rank."""

    def __init__(self, size: int, timeout: float, **variables: str) -> None:
        server = fork_server()
        self._meeting = tempfile.TemporaryDirectory()
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(size):
            ours, theirs = server.Pipe()
            arguments = (theirs, rank, size, str(Path(self._meeting.name) / "store"), timeout, variables)
            process = server.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, task: Task, *arguments: Any, ranks: int | None = None) -> list[Any]:
        """The task's results by rank; it runs on the first `ranks` processes, or on all."""
        pipes = self.pipes[:ranks]
        for pipe in pipes:
            pipe.send((task, arguments))
        return [self.answer(rank) for rank in range(len(pipes))]

    def begin(self, task: Task, *arguments: Any) -> None:
        """Starts a task on all, without waiting."""
        for pipe in self.pipes:
            pipe.send((task, arguments))

    def answer(self, rank: int) -> Any:
        """Waits for one rank's result, and raises its error."""
        if not self.pipes[rank].poll(60):
            raise TimeoutError(f"rank {rank} did not answer")
        ok, value = self.pipes[rank].recv()
        if not ok:
            raise AssertionError(f"rank {rank}:\n{value}")
        return value

    def close(self) -> None:
        """Ends the processes that still run."""
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
        self._meeting.cleanup()


@contextmanager
def crew_of(size: int, timeout: float = 30.0, **variables: str) -> Iterator[Crew]:
    """A crew for as long as the block runs."""
    crew = Crew(size, timeout, **variables)
    try:
        yield crew
    finally:
        crew.close()


def _serve(pipe: Connection, rank: int, size: int, meeting: str, timeout: float, variables: dict[str, str]) -> None:
    loopback = "lo" if sys.platform == "linux" else "lo0"
    os.environ.update({"GLOO_SOCKET_IFNAME": loopback, **variables})
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore, PrefixStore

    from cabrank.sync.peers import Peers

    torch.set_num_threads(1)
    store = FileStore(meeting, size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    peers_of = {}
    for n in range(1, size + 1):
        group = dist.new_group(list(range(n)))
        if rank < n:
            inquest = PrefixStore(f"inquest{n}", FileStore(meeting, size))
            peers_of[n] = Peers(group, rank, n, [f"host{r}" for r in range(n)], timeout, inquest)
    while True:
        try:
            task, arguments = pipe.recv()
        except (EOFError, OSError):
            break
        try:
            pipe.send((True, task(peers_of, *arguments)))
        except Exception:  # noqa: BLE001  the test shows it
            pipe.send((False, traceback.format_exc()))
    os._exit(0)  # peers may be gone; nothing is left to tidy up
