"""From which size on a GPU pays: additions, multiplications and one baseline step, timed over powers of two.

A point is the median of several repetitions after a warm-up. One repetition queues as many calls as fill a millisecond
and then waits for the device once: a GPU is timed as training uses it, fed without a wait between two steps.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch

from cabrank.train.devices import free_bytes
from cabrank.train.model import LinearRegression
from cabrank.train.step import take_step

COLUMNS = 9  # of the baseline step's rows: a label and eight features, as in the taxi trips
REPETITIONS = 7
FEW_REPETITIONS, SLOW_SECONDS = 3, 0.05  # a call this long is no longer at the mercy of a single interruption
REPETITION_SECONDS = 1e-3  # long beside the clock's resolution and a GPU's launch, short beside a user's patience
CURVE_SECONDS = 12.0  # a curve ends before the size that would take it beyond: three on a CPU stay under a minute
FREE_SHARE = 0.5  # of the free memory: the machine goes on serving others

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Operation:
    """Something to time: `prepare(n, device)` gives the call that does it once on n elements, or rows."""

    name: str
    what: str
    bytes_each: int
    """Memory that one element, or row, takes while the call runs."""
    prepare: Callable[[int, torch.device], Call]


@dataclass(slots=True)
class Curve:
    """Seconds a call by size, on one device."""

    operation: Operation
    device: str
    seconds: dict[int, float] = field(default_factory=dict)
    left_out: str = ""
    """Which sizes were not timed, and why; empty when all were."""


def _pointwise(operate: Callable[..., torch.Tensor]) -> Callable[[int, torch.device], Call]:
    def prepare(n: int, device: torch.device) -> Call:
        a, b, out = (torch.ones(n, dtype=torch.float32, device=device) for _ in range(3))
        return lambda: operate(a, b, out=out)

    return prepare


def _baseline_step(n: int, device: torch.device) -> Call:
    batch = torch.ones(n, COLUMNS, dtype=torch.float64, device=device)
    model = LinearRegression(COLUMNS - 1, seed=0).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
    return lambda: take_step(model, batch, optimizer, clip_norm=0.5)


OPERATIONS = (
    Operation("add", "a + b, float32", 3 * 4, _pointwise(torch.add)),
    Operation("multiply", "a × b, float32", 3 * 4, _pointwise(torch.mul)),
    # beside the rows: predictions, residuals, and the gradients of both
    Operation("step", f"baseline step, [n, {COLUMNS}] float64", (COLUMNS + 4) * 8, _baseline_step),
)


def measure(max_exponent: int, devices: list[torch.device], tick: Callable[[], object] = lambda: None) -> list[Curve]:
    """The curves of all operations on all `devices`, over sizes 2^0 … 2^max_exponent. Calls `tick` after each size, so
    `len(OPERATIONS) * len(devices) * (max_exponent + 1)` times less the sizes left out."""
    curves = []
    for operation, device in itertools.product(OPERATIONS, devices):
        curve = Curve(operation, device.type)
        for size, seconds in _points(curve, max_exponent, device):
            curve.seconds[size] = seconds
            tick()
        curves.append(curve)
    return curves


def _points(curve: Curve, max_exponent: int, device: torch.device) -> Iterator[tuple[int, float]]:
    repeat(curve.operation.prepare(1, device), 1, device)  # loads modules and kernels before the clock runs
    began = time.perf_counter()
    last_cost = 0.0
    for exponent in range(max_exponent + 1):
        started = time.perf_counter()
        if reason := _too_much(curve.operation.bytes_each << exponent, device, started - began + 2 * last_cost):
            more = f"2^{exponent}" + (f" to 2^{max_exponent}" if exponent < max_exponent else "")
            curve.left_out = f"{curve.operation.name} on {curve.device}: {more} left out: {reason}"
            return
        yield 2**exponent, time_call(curve.operation.prepare(2**exponent, device), device)
        last_cost = time.perf_counter() - started


def _too_much(needed: int, device: torch.device, expected_seconds: float) -> str:
    """Why a size is not to be timed, or an empty string: twice the rows cost about twice the time."""
    if needed > (free := free_bytes(device)) * FREE_SHARE:
        return f"it takes {needed / 2**30:.1f} GiB, more than half of the {free / 2**30:.1f} GiB that are free"
    if expected_seconds > CURVE_SECONDS:
        return f"it would take more than the {CURVE_SECONDS:.0f} s that a curve may take"
    return ""


def time_call(call: Call, device: torch.device) -> float:
    """Median seconds of one `call`."""
    repeat(call, 1, device)  # warm-up: first touch of memory, loading of kernels
    once = repeat(call, 1, device)
    calls = max(1, int(REPETITION_SECONDS / once))
    repetitions = FEW_REPETITIONS if once > SLOW_SECONDS else REPETITIONS
    return statistics.median(repeat(call, calls, device) for _ in range(repetitions)) / calls


def repeat(call: Call, calls: int, device: torch.device) -> float:
    """Seconds that `calls` calls take, the device's own work included."""
    began = time.perf_counter()
    for _ in range(calls):
        call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def wins_from(challenger: Mapping[int, float], champion: Mapping[int, float]) -> int | None:
    """The size from which on `challenger` is the faster one, and stays it; None where it never is at the largest size
    that both were timed at."""
    winning = None
    for size in sorted(challenger.keys() & champion.keys(), reverse=True):
        if challenger[size] >= champion[size]:
            break
        winning = size
    return winning
