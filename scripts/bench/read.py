"""How fast this dataset reads, beside what it stands on and what else there is: medians of interleaved rounds.

    python scripts/bench/read.py [--rows 2000000] [--parts 12] [--threads N] [--rounds 3]
        [--stores local,moto,seaweedfs] [--peers yes|no] [--memory]

The same parts, at batches of 2^12, 2^16 and 2^20 rows, from the local disk, from moto's server and from SeaweedFS (each
in a process of its own, on loopback). Every reader has a process of its own, too, and all take turns. The peers' live
in `.venv-peers`, which is made when it is not there (scripts/bench/reading/peers.txt; `--peers no` leaves them out). A
peer that cannot be installed or run is named with the reason. Files in the page cache are what all of them read.

`--memory` also reads the rows, and ten times as many (1.2 GB on disk for the time being), in fresh processes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from reading.jobs import FailedError, Job, Process
from reading.places import BENCH, ROOT, Place, make_parts, peers_python, place
from reading.tell import Medians, Ratios, rates

from cabrank.data.reading import cores

SIZES = [2**12, 2**16, 2**20]
OURS = ("cabrank", "cabrank cache", "first batch", "bare pyarrow", "bare GETs", "memory copy")
PEERS = ("bare polars", "pandas", "S3 Connector", "LitData", "kaen")
PARTIAL = ("first batch", "kaen")
"""Labels that begin so tell of fewer rows than there are."""


class Bench:
    """Readers on places, their timings and their failures."""

    def __init__(self, options: argparse.Namespace, python: str | None, scratch: Path) -> None:
        self.options, self.python, self.scratch = options, python, scratch
        self.times: dict[tuple[str, str, int], list[float]] = defaultdict(list)
        self.rows: dict[tuple[str, str, int], int] = {}
        self.failures: dict[str, str] = {}

    def measure(self, where: Place) -> None:
        """All readers by turns; the first round warms up and does not count."""
        with ExitStack() as stack:
            children = {name: stack.enter_context(child) for name, child in self.children(where)}
            for turn in range(self.options.rounds + 1):
                print(f"{where.name}: {f'round {turn}' if turn else 'warming up'}", file=sys.stderr, flush=True)
                for size in SIZES:
                    for name, child in list(children.items()):
                        try:
                            self.note(where, name, child, size, counts=turn > 0)
                        except FailedError as error:
                            self.failures[f"{name}, {where.name}, 2^{size.bit_length() - 1}"] = str(error)
                            del children[name]

    def children(self, where: Place) -> Iterator[tuple[str, Process]]:
        """A process for each reader."""
        threads = str(self.options.threads)
        common = {"POLARS_MAX_THREADS": threads, "BENCH_COUNTS": where.counts, "TMPDIR": str(self.scratch)}
        common |= where.environment
        ours = {"PYTHONPATH": f"{BENCH}{os.pathsep}{ROOT / 'jobs'}"}
        for name in OURS:
            yield name, Process(sys.executable, "reading.ours", common | ours, self.scratch / "ours.log")
        for name in PEERS if self.python else ():
            yield name, Process(self.python or "", "reading.peers", common | {"PYTHONPATH": str(BENCH)}, self.log)

    @property
    def log(self) -> Path:
        """What the peers say on stderr."""
        return self.scratch / "peers.log"

    def note(self, where: Place, name: str, child: Process, size: int, *, counts: bool) -> None:
        """One job's timings; they count unless the round warms up."""
        options = self.options
        job = Job(name, where.folder, where.names, options.rows, size, options.threads, str(self.scratch))
        for one in child.ask(job):
            if one.rows != options.rows and not one.label.startswith(PARTIAL):
                raise FailedError(f"{one.label}: read {one.rows} rows, not {options.rows}")
            if counts:
                self.times[where.name, one.label, size].append(one.seconds)
                self.rows[where.name, one.label, size] = one.rows

    @property
    def medians(self) -> Medians:
        """Of the rounds that count."""
        return {key: (self.rows[key], statistics.median(times)) for key, times in self.times.items()}

    def tell(self) -> None:
        """Both tables, and what could not be measured."""
        options, medians = self.options, self.medians
        print(
            f"\n{options.rows} rows, {options.parts} parts, {options.threads} threads; "
            f"medians of {options.rounds} interleaved rounds"
        )
        for where in options.stores:
            print("\n" + "\n".join(rates(medians, where, SIZES)))
        print("\nwanted")
        for where in options.stores:
            for size in SIZES:
                print("\n".join(f"  {ratio}" for ratio in Ratios(medians, where, size).lines()))
        for what, why in self.failures.items():
            print(f"not measured: {what}: {why}")


def tell_memory(folder: Path, options: argparse.Namespace) -> None:
    """Peaks of reading the rows, and ten times as many, in fresh processes."""
    peaks = []
    environment = {**os.environ, "PYTHONPATH": f"{BENCH}{os.pathsep}{ROOT / 'jobs'}"}
    for times in (1, 10):
        with tempfile.TemporaryDirectory(dir=folder) as parts:
            make_parts(Path(parts), times * options.rows, options.parts)
            command = [sys.executable, "-m", "reading.memory", parts, str(1 << 16), str(options.threads)]
            found = json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)
        assert found["rows"] == times * options.rows
        peaks.append(found["peak"] - found["imports"])
        print(f"  {found['rows']:>10} rows: peak {found['peak']:.0f} MB, {peaks[-1]:.0f} MB above the imports")
    print(f"  ratio above the imports {peaks[1] / peaks[0]:.2f}, wanted ≤ 1.2; peak wanted < 400 MB")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--parts", type=int, default=12)
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stores", type=lambda text: text.split(","), default=["local", "moto", "seaweedfs"])
    parser.add_argument("--peers", choices=("yes", "no"), default="yes")
    parser.add_argument("--memory", action="store_true")
    options = parser.parse_args()
    if unknown := set(options.stores) - {"local", "moto", "seaweedfs"}:
        parser.error(f"--stores: {', '.join(sorted(unknown))}: known are local, moto, seaweedfs")
    return options


def main() -> None:
    """Makes the parts, measures place by place, prints the tables."""
    options = arguments()
    python, missing = peers_python(ROOT / ".venv-peers") if options.peers == "yes" else (None, [])
    with tempfile.TemporaryDirectory(prefix="bench-read-") as name:
        scratch = Path(name)
        local = scratch / "parts"
        names = make_parts(local, options.rows, options.parts)
        bench = Bench(options, python, scratch)
        bench.failures |= dict(line.split(": ") for line in missing)
        for where in options.stores:
            with place(where, local, names, scratch) as there:
                bench.measure(there)
        bench.tell()
        if options.memory:
            print("\nmemory")
            tell_memory(scratch, options)


if __name__ == "__main__":
    main()
