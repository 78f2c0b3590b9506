"""The other ranks: sending to them, receiving from them, and saying which one is lost.

Every wait has a timeout and every failed wait a culprit. The rank that a wait was for need not be the one that is lost:
in a ring of three, when rank 2 stops, rank 1 waits for 2 and rank 0 waits for 1. So whoever gives up writes down, in a
store that all share, whom it waited for, and follows the chain: 0 waited for 1, 1 waited for 2, 2 wrote nothing. The
first to come to its end writes the verdict down for all. It is pushed to every rank while that is waiting still (by
`watch`), since nobody can say how long the store stays: the rank that keeps it may be leaving, or be the one lost.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from cabrank.errors import PeerLostError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store  # torch.distributed has it, and does not export it to type checkers
    from torch.distributed import ProcessGroup, Work

Parcel = tuple[Tensor, int]
"""A tensor, and the rank that it goes to or comes from."""

INQUEST_SHARE = 0.1  # of the timeout: for finding out who is lost, once waiting has failed
LONGEST_INQUEST = 10.0  # seconds
CLOSED_INQUEST = 1.0  # seconds: a rank that gave up wrote its reason just before its connections closed
KEEPERS_SECONDS = 0.5  # how much longer the rank that keeps the store stays, at most as long as its inquest
VERDICT, NOBODY = "lost/verdict", -1
POLL = 0.02  # seconds


@dataclass(slots=True)
class Peers:
    """This rank and the others of one process group, which nothing else may use.

    `hosts[r]` is rank r's host. `timeout` is how many seconds one may keep the others waiting. `step` is kept up
    to date by the loop, for messages. `store` is shared by all ranks; `store_rank` says which of them keeps it, if any.
    `verdict` is where `watch` puts the rank that somebody found to be lost.
    """

    group: ProcessGroup | None
    rank: int
    world: int
    hosts: Sequence[str]
    timeout: float = 60.0
    store: Store | None = None
    store_rank: int | None = None
    step: int = 0
    verdict: list[int] = field(default_factory=list)
    _patience: timedelta = field(init=False)

    def __post_init__(self) -> None:
        self._patience = timedelta(seconds=self.timeout * (1 - 2 * INQUEST_SHARE))

    @property
    def on_nccl(self) -> bool:
        """Whether tensors travel from GPU to GPU; otherwise gloo carries them, from and to the CPU's memory."""
        return self.group is not None and dist.get_backend(self.group) == "nccl"

    def send(self, tensor: Tensor, to: int, phase: str) -> Work:
        """Begins to send `tensor`, which must stay as it is, and its handle be kept, until that was waited for."""
        return self._begun(dist.isend, tensor, "group_dst", to, phase)

    def receive(self, tensor: Tensor, sender: int, phase: str) -> Work:
        """Begins to receive into `tensor`; to be posted before it is needed, since sending is a handshake in gloo."""
        return self._begun(dist.irecv, tensor, "group_src", sender, phase)

    def _begun(self, begin: Callable[..., Any], tensor: Tensor, side: str, peer: int, phase: str) -> Work:
        try:
            work: Work = begin(tensor, group=self.group, **{side: peer})
        except RuntimeError as error:
            raise self.lost(peer, phase, error) from error
        return work

    def wait(self, work: Work | None, peer: int, phase: str) -> None:
        """Waits for one handle; `PeerLostError` after the timeout, or as soon as the connection is gone."""
        try:
            if work is not None:  # as it would be for a process that is not in the group
                work.wait(self._patience)
        except RuntimeError as error:
            raise self.lost(peer, phase, error) from error

    def exchange(self, sends: Sequence[Parcel], receives: Sequence[Parcel], phase: str) -> None:
        """All of `sends` and `receives` at once, empty ones left out on both ends. On NCCL it is one batch, queued
        and not waited for (`settle` does that)."""
        receives = [parcel for parcel in receives if parcel[0].numel()]
        sends = [parcel for parcel in sends if parcel[0].numel()]
        if self.on_nccl:
            self._exchange_on_nccl(sends, receives, phase)
            return
        begun = [(self.receive(tensor, peer, phase), peer) for tensor, peer in receives]
        begun += [(self.send(tensor, peer, phase), peer) for tensor, peer in sends]
        for work, peer in begun:
            self.wait(work, peer, phase)

    def _exchange_on_nccl(self, sends: Sequence[Parcel], receives: Sequence[Parcel], phase: str) -> None:
        ops = [dist.P2POp(dist.irecv, tensor, group=self.group, group_peer=peer) for tensor, peer in receives]
        ops += [dist.P2POp(dist.isend, tensor, group=self.group, group_peer=peer) for tensor, peer in sends]
        try:
            for work in dist.batch_isend_irecv(ops) if ops else ():
                work.wait()
        except RuntimeError as error:
            raise self.lost((*receives, *sends)[0][1], phase, error) from error

    def settle(self, device: torch.device, peer: int, phase: str) -> None:
        """On a GPU, waits until what was queued on the current stream is done; `peer` is whom it depends on."""
        if device.type != "cuda":
            return
        done = torch.cuda.current_stream(device).record_event()
        deadline = time.monotonic() + self._patience.total_seconds()
        while not done.query():
            if time.monotonic() > deadline:
                raise self.lost(peer, phase, TimeoutError(f"not done after {self._patience.total_seconds():.0f} s"))
            time.sleep(POLL / 100)

    @contextmanager
    def guard(self, phase: str) -> Iterator[None]:
        """Around collectives that others start, DDP's own: a failed one becomes a `PeerLostError`; what the backends
        have no part in passes as it is."""
        try:
            yield
        except RuntimeError as error:
            if not isinstance(error, dist.DistError) and not re.search(r"\bgloo\b|NCCL", str(error)):
                raise
            # gloo's rings wait for rank + 1 first; the inquest knows more
            raise self.lost((self.rank + 1) % self.world, phase, error) from error

    def lost(self, peer: int, phase: str, error: Exception) -> PeerLostError:
        """The error to raise after waiting for `peer` failed with `error`; takes at most the inquest's seconds."""
        timed_out = "imed out" in str(error) or isinstance(error, TimeoutError)
        culprit = self._inquest(peer, timed_out)
        what = f"did not answer for {self.timeout:g} s" if timed_out else "closed the connection"
        where = f"in {phase}, step {self.step}"
        if culprit == self.rank:
            return PeerLostError(
                f"the others gave up rank {self.rank} on {self.hosts[self.rank]}, this one, as lost: it stood still, "
                f"or its network did; noticed {where}. If it was only slow, raise --peer-timeout",
                rank=culprit,
            )
        through = "" if culprit == peer else f" (rank {self.rank} waited for rank {peer}, which waited for it)"
        return PeerLostError(
            f"rank {culprit} on {self.hosts[culprit]} is lost: it {what} {where}{through}; "
            f"noticed by rank {self.rank} on {self.hosts[self.rank]}. The log of rank {culprit} may say why; "
            "if it was only slow, raise --peer-timeout",
            rank=culprit,
        )

    def _inquest(self, peer: int, timed_out: bool) -> int:
        """The verdict; where there is none, a store that does not answer died with the rank that keeps it."""
        if self.verdict:
            return self.verdict[0]
        if self.store is None:
            return peer
        longest = min(self.timeout * INQUEST_SHARE, LONGEST_INQUEST)
        seconds = longest if timed_out else min(CLOSED_INQUEST, longest)
        found: list[int] = []
        asking = threading.Thread(target=self._ask, args=(self.store, peer, seconds, found), daemon=True)
        asking.start()
        asking.join(seconds * 1.5)  # a store on a stopped machine keeps whoever asks it waiting
        if self.rank == self.store_rank:
            time.sleep(min(KEEPERS_SECONDS, longest))
        if self.verdict or found:
            return (self.verdict or found)[0]
        return peer if self.store_rank in (None, self.rank) else int(self.store_rank or 0)

    def _ask(self, store: Store, peer: int, seconds: float, found: list[int]) -> None:
        """Follows the chain of who waited for whom for some seconds, and puts into `found` where it ends."""
        deadline = time.monotonic() + seconds
        culprit, seen = peer, {self.rank}
        try:
            store.set(f"lost/{self.rank}", str(peer))
            while not self.verdict and time.monotonic() < deadline and culprit not in seen:
                if store.check([f"lost/{culprit}"]):
                    seen.add(culprit)
                    culprit = int(store.get(f"lost/{culprit}"))
                else:
                    time.sleep(POLL)
            # in a circle of ranks that all gave up nobody is silent; then it is the one that this rank waited for
            culprit = peer if culprit in seen else culprit
            found.append(int(store.compare_set(VERDICT, "", str(culprit))))
        except RuntimeError:
            return


def watch(store: Store, verdict: list[int]) -> threading.Thread:
    """Starts the thread that puts the verdict there as soon as it is in `store`, a connection of its own; it ends then,
    and when the store does."""

    def wait() -> None:
        with suppress(RuntimeError):
            store.wait([VERDICT], timedelta(days=365))
            if (rank := int(store.get(VERDICT))) != NOBODY:
                verdict.append(rank)

    thread = threading.Thread(target=wait, name="cabrank-watch", daemon=True)
    thread.start()
    return thread


def alone() -> Peers:
    """The `Peers` of a world of one, which needs no process group."""
    return Peers(None, 0, 1, (socket.gethostname(),))
