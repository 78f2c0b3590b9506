"""Peak memory of reading a folder once, in this fresh process: python -m reading.memory FOLDER BATCH THREADS"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def peak() -> float:
    """MB, as the kernel has it; `ru_maxrss` would include the parent's from before exec."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6


def main() -> None:
    """Prints the peak after the imports, and after an epoch."""
    import torch
    from pyarrow import csv

    from cabrank import ObjectStorageDataset

    torch.ones(2).sum()
    csv.ReadOptions()
    imports = peak()
    folder, batch, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    rows = sum(len(one) for one in ObjectStorageDataset(folder, batch_size=batch, threads=threads, tail="uneven"))
    print(json.dumps({"rows": rows, "imports": imports, "peak": peak()}))


if __name__ == "__main__":
    main()
