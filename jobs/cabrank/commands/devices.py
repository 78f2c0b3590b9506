"""`cabrank devices`: what there is to train on; with --bench, the size from which a GPU is worth having."""

from __future__ import annotations

import csv
import io
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict

import torch

from cabrank.config import DevicesConfig
from cabrank.console import json_line, say, table, track
from cabrank.errors import ConfigError
from cabrank.store import Store, canonical, open_store
from cabrank.train.bench import OPERATIONS, Curve, measure, wins_from
from cabrank.train.bench_plot import bench_png
from cabrank.train.devices import Machine, find_machine

log = logging.getLogger("cabrank")


def run(config: DevicesConfig) -> None:
    """Shows the machine; with `config.bench` times it, shows the result, and writes `bench.csv` and `bench.png`."""
    if config.out and not config.bench:
        raise ConfigError(f"--out is {config.out!r}, but only --bench has something to write; add --bench")
    folder = canonical(config.out).removesuffix("/") + "/" if config.out else ""
    store = open_store(folder, config.storage_options(), writable=True) if folder else None
    machine = find_machine()
    show_machine(machine)
    if not machine.gpus:
        log.info(
            "no CUDA device here: %s", "the curves are the CPU's alone" if config.bench else "jobs train on the CPU"
        )
    if config.bench:
        curves = bench(config.max_exponent, machine)
        show_bench(curves)
        if store:
            write_bench(folder, store, curves, machine)


def bench(max_exponent: int, machine: Machine) -> list[Curve]:
    """All curves of the CPU, and of the first GPU where there is one."""
    devices = [torch.device("cpu")] + [torch.device("cuda")] * bool(machine.gpus)
    with track("bench", len(OPERATIONS) * len(devices) * (max_exponent + 1), unit="sizes") as advance:
        curves = measure(max_exponent, devices, lambda: advance(1))
    for curve in curves:
        if curve.left_out:
            log.warning("%s", curve.left_out)
    return curves


def show_machine(machine: Machine) -> None:
    """A table on a terminal, else one JSON line."""
    if not sys.stdout.isatty():
        say(json_line({"event": "devices", **asdict(machine)}))
        return
    rows = [(f"CPU, {machine.cores} cores", "", "", "")]
    rows += [
        (gpu.name, gpu.capability, f"{gpu.memory_bytes / 2**30:.1f} GiB", str(gpu.multiprocessors))
        for gpu in machine.gpus
    ]
    table("devices", ("device", "capability", "memory", "multiprocessors"), rows)


def show_bench(curves: Sequence[Curve]) -> None:
    """Seconds by size, and for each operation the size from which the GPU stays ahead."""
    leads = gpu_leads(curves)
    if not sys.stdout.isatty():
        for line in bench_rows(curves):
            say(json_line({"event": "bench", **line}))
        for operation, size in leads.items():
            say(json_line({"event": "gpu_ahead", "operation": operation, "from_size": size}))
        return
    sizes = sorted({size for curve in curves for size in curve.seconds})
    header = ("n", *(f"{curve.operation.name}, {curve.device}" for curve in curves))
    cells = [(f"{size:,}", *(_time(curve.seconds.get(size)) for curve in curves)) for size in sizes]
    table("time a call", header, cells)
    for operation, size in leads.items():
        ahead = "the CPU is ahead at the largest size" if size is None else f"the GPU is ahead from {size:,} on"
        say(f"{operation}: {ahead}")


def gpu_leads(curves: Sequence[Curve]) -> dict[str, int | None]:
    """By operation, the size from which the GPU is faster and stays it; empty on a machine without one."""
    cpu = {curve.operation.name: curve.seconds for curve in curves if curve.device == "cpu"}
    return {c.operation.name: wins_from(c.seconds, cpu[c.operation.name]) for c in curves if c.device == "cuda"}


def bench_rows(curves: Sequence[Curve]) -> list[dict[str, object]]:
    """One row a point, in the order of timing."""
    return [
        {"operation": curve.operation.name, "device": curve.device, "size": size, "seconds": seconds}
        for curve in curves
        for size, seconds in curve.seconds.items()
    ]


def write_bench(folder: str, store: Store, curves: Sequence[Curve], machine: Machine) -> None:
    """`bench.csv` and `bench.png` in `folder`, a URI that ends in "/"."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, ["operation", "device", "size", "seconds"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(bench_rows(curves))
    names = {"cpu": f"CPU, {machine.threads} threads"}
    if machine.gpus:
        names["cuda"] = machine.gpus[0].name
    png = bench_png(curves, names)
    store.put(folder + "bench.csv", text.getvalue().encode())
    store.put(folder + "bench.png", png)
    say(f"table and plot: {folder}" if sys.stdout.isatty() else json_line({"event": "written", "folder": folder}))


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds * 1e6:,.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:,.1f} ms"
