"""What there is to train on here: cores and GPUs, and how much memory is free on each."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from cabrank.data.reading import cores


@dataclass(frozen=True, slots=True)
class Gpu:
    """One CUDA device."""

    name: str
    capability: str
    """Compute capability, as in "9.0"."""
    memory_bytes: int
    multiprocessors: int


@dataclass(frozen=True, slots=True)
class Machine:
    """What a job started here may use."""

    cores: int
    """Cores this process may run on: fewer than the machine has, where a container or a scheduler says so."""
    threads: int
    """Threads that torch computes with."""
    gpus: tuple[Gpu, ...]


def find_machine() -> Machine:
    """Asks the operating system and CUDA; starts nothing on either."""
    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return Machine(
        cores=cores(),
        threads=torch.get_num_threads(),
        gpus=tuple(Gpu(g.name, f"{g.major}.{g.minor}", g.total_memory, g.multi_processor_count) for g in gpus),
    )


def free_bytes(device: torch.device) -> int:
    """Memory that can be had on `device` without pushing anything out."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what torch keeps of freed tensors counts as free
        return torch.cuda.mem_get_info(device)[0]
    return min(_free_on_the_host(), _free_in_the_container())


def _free_on_the_host(meminfo: Path = Path("/proc/meminfo")) -> int:
    if meminfo.exists():
        fields = dict(line.split(":") for line in meminfo.read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2  # macOS does not say: half of what it has


def _free_in_the_container(group: Path = Path("/sys/fs/cgroup")) -> int:
    """What the control group's limit leaves; the limit is "max", or not there, where nobody set one."""
    limit, used = group / "memory.max", group / "memory.current"
    if not limit.exists() or limit.read_text().strip() == "max":
        return 2**63 - 1
    return max(int(limit.read_text()) - int(used.read_text()), 0)
