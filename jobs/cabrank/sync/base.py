"""The seam between a training loop and whatever sums its gradients over the ranks.

    flat bucket in → `torch.futures.Future` of the same bucket, summed over all ranks, in place

which is what DDP asks of a communication hook. So its reducer fills the buckets, and starts each while the gradients of
the layers before it are still being computed; a strategy sums them, one after the other, on a thread of its own
(gloo's sends and receives bring no future along).

An error cannot travel through such a future (DDP reports "Unable to cast … to Tensor" in its place). It is kept here
instead: the bucket is handed back as it is, and `check`, called by the loop right after `backward`, raises it.
"""

from __future__ import annotations

import queue
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.futures import Future

from cabrank.sync.peers import Peers

_NARROW = 4  # bytes: with a wire dtype given, sums are taken in elements no narrower than this


@dataclass(slots=True)
class Traffic:
    """What one bucket has cost this rank, over all steps."""

    sent: int = 0
    """Bytes."""
    received: int = 0
    """Bytes."""
    busy_seconds: float = 0.0
    """Time that its sums took, waiting for slower ranks included."""


@dataclass(slots=True)
class Account:
    """What synchronising has cost this rank: bytes and busy seconds by bucket, and what the loop saw of them."""

    buckets: dict[int, Traffic] = field(default_factory=dict)
    exposed_seconds: float = 0.0
    """From the last gradient of a backward pass to the last sum: what overlapping did not hide."""

    def bucket(self, index: int) -> Traffic:
        """The entry of one bucket, made when it is new."""
        return self.buckets.setdefault(index, Traffic())

    @property
    def total(self) -> Traffic:
        """The sum over all buckets."""
        all_of_them = list(self.buckets.values())
        return Traffic(
            sum(t.sent for t in all_of_them),
            sum(t.received for t in all_of_them),
            sum(t.busy_seconds for t in all_of_them),
        )


@dataclass(slots=True)
class _Job:
    bucket: Tensor
    index: int
    last: bool
    future: Future[Tensor]
    ready: torch.cuda.Event | None
    asked: float


class Strategy(ABC):
    """One way to sum buckets over all ranks; every rank gives the same buckets in the same order.

    `wire_dtype`: what floating-point elements travel as; sums are taken in the bucket's dtype, or in float32 where that
    is wider. Without it they travel as they are and nothing is rounded. Integers are never rounded.
    """

    name: ClassVar[str]

    def __init__(self, peers: Peers, wire_dtype: torch.dtype | None = None) -> None:
        self.peers = peers
        self.account = Account()
        self._wire_dtype = wire_dtype
        self._error: Exception | None = None
        self._memory: dict[str, Tensor] = {}
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._latest: Future[Tensor] | None = None

    @abstractmethod
    def _sum(self, work: Tensor, wire: Tensor, index: int) -> None:
        """Sums `work` over all ranks, in place, on the strategy's thread. `wire` is the same tensor, or its twin in the
        dtype that travels; at the end `work` holds what the twin can hold, on every rank the same. Counts the bytes of
        bucket `index`."""

    def start(self, bucket: Tensor, index: int = 0, *, last: bool = True) -> Future[Tensor]:
        """Begins to sum a 1-D `bucket`, of any length, in place. `index` is its place in the account; `last` says that
        no other bucket of this backward pass follows. The future never fails: see `check`."""
        job = self._job(bucket, index, last=last)
        if not self._has_to_travel(bucket):
            job.future.set_result(bucket)
            return job.future
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=f"cabrank-{self.name}", daemon=True)
            self._thread.start()
        self._jobs.put(job)
        self._latest = job.future
        return job.future

    def _has_to_travel(self, bucket: Tensor) -> bool:
        return self.peers.world > 1 and bucket.numel() > 0 and self._error is None

    def _job(self, bucket: Tensor, index: int, *, last: bool) -> _Job:
        self.account.bucket(index)  # an entry even for what costs nothing
        cuda = bucket.is_cuda
        future: Future[Tensor] = Future(devices=[bucket.device] if cuda else None)
        ready = torch.cuda.current_stream(bucket.device).record_event() if cuda else None
        return _Job(bucket, index, last, future, ready, time.perf_counter())

    def all_reduce(self, bucket: Tensor, index: int = 0) -> Tensor:
        """Sums `bucket` in this thread, after the buckets that were started before; raises what went wrong."""
        if self._latest is not None:
            self._latest.wait()
        self.check()
        if self._has_to_travel(bucket):
            try:
                self._run(self._job(bucket, index, last=True))
            except Exception as error:
                self._error = error
                raise
        return bucket

    def check(self) -> None:
        """Raises the error of the first bucket that failed, if one did: to be called after every `backward`, before
        the gradients are used. After it, the strategy sums nothing any more."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Ends the thread, after what was started."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self._error is None:
                try:
                    self._run(job)
                except Exception as error:  # noqa: BLE001  raised in the loop's thread, by `check`
                    self._error = error
            job.future.set_result(job.bucket)

    def _run(self, job: _Job) -> None:
        began = time.perf_counter()
        if job.ready is None:
            self._sum_in_memory_that_travels(job)
        else:
            device = job.bucket.device
            with torch.cuda.device(device):  # before anything of NCCL's or CUDA's: a thread starts on device 0
                torch.cuda.current_stream(device).wait_event(job.ready)
                self._sum_in_memory_that_travels(job)
                self.peers.settle(device, (self.peers.rank + 1) % self.peers.world, f"{self.name}, bucket {job.index}")
        now = time.perf_counter()
        self.account.bucket(job.index).busy_seconds += now - began
        if job.last:
            self.account.exposed_seconds += now - job.asked

    def _sum_in_memory_that_travels(self, job: _Job) -> None:
        work = self._workable(job.bucket)
        self._sum(work, self._twin(work), job.index)
        if work is not job.bucket:
            job.bucket.copy_(work)

    def _workable(self, bucket: Tensor) -> Tensor:
        """`bucket`, or a copy of it where gloo can reach it and sums are precise enough."""
        dtype = bucket.dtype
        if self._wire_dtype is not None and dtype.is_floating_point and dtype.itemsize < _NARROW:
            dtype = torch.float32
        device = bucket.device if self.peers.on_nccl else torch.device("cpu")
        if (dtype, device) == (bucket.dtype, bucket.device):
            return bucket
        copy = self._scratch("work", dtype, len(bucket), device, pinned=bucket.is_cuda and device.type == "cpu")
        return copy.copy_(bucket)

    def _twin(self, work: Tensor) -> Tensor:
        if self._wire_dtype in (None, work.dtype) or not work.dtype.is_floating_point:
            return work
        return self._scratch("wire", self._wire_dtype, len(work), work.device).copy_(work)

    def _scratch(
        self, use: str, dtype: torch.dtype | None, length: int, device: torch.device, *, pinned: bool = False
    ) -> Tensor:
        """[length] elements that are kept from call to call, sized by the largest: first touch of memory is slow, and
        DDP makes its buckets anew after the first step."""
        kept = self._memory.get(f"{use} {dtype} {device}")
        if kept is None or len(kept) < length:
            kept = torch.empty(length, dtype=dtype, device=device, pin_memory=pinned)
            self._memory[f"{use} {dtype} {device}"] = kept
        return kept[:length]
