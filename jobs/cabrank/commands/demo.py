"""The whole flow on this machine: an S3 of its own, sample, shard, baseline, and the results read back from that S3."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cabrank.commands import baseline, sample, shard
from cabrank.config import BaselineConfig, DemoConfig, SampleConfig, ShardConfig
from cabrank.console import counted, say, table
from cabrank.errors import ConfigError
from cabrank.local.store import EmbeddedStore
from cabrank.store import canonical
from cabrank.train.run_folder import SUMMARY, RunFolder

BUCKET = "cabrank-demo"
DATA, RUN = f"s3://{BUCKET}/csv/dev", f"s3://{BUCKET}/runs/baseline"

ABOVE_THE_MEAN = (
    "SGD is above the mean because the columns go in raw: a year is about 2,000, and makes one direction far steeper "
    "than the others, so that steps which do not overshoot there get nowhere elsewhere. The report says more."
)


def run(config: DemoConfig) -> None:
    """Leaves the baseline's results in `config.out` and their report's path as the last line. Needs no account, no
    credentials and no network but loopback; a second run replaces the first one's files."""
    here = local_folder(config)
    with here.working(), own_environment(), EmbeddedStore(BUCKET) as s3:
        os.environ.update(s3.environment)
        say(f"sample: {counted(config.rows, 'taxi-like trip')} in {counted(config.parts, 'part')}, to {DATA}")
        sample.run(SampleConfig.of({"dest": DATA, "rows": config.rows, "parts": config.parts, "seed": config.seed}))
        say(f"shard: counts and statistics, beside them in {DATA}/.meta")
        shard.run(ShardConfig.of({"data": DATA}))
        say(f"baseline: {counted(config.iterations, 'iteration')} of linear regression, results to {RUN}")
        settings = {"data": DATA, "out": RUN, "iterations": config.iterations, "seed": config.seed}
        results, _ = baseline.fit(BaselineConfig.of(settings))
        files = fetch(RunFolder(RUN))
    summary = json.loads(files.pop(SUMMARY))
    here.publish(config.verb, config.model_dump(), files, summary)
    show(config, summary, results.table)
    say((here.uri + "report.html").removeprefix("file://"))
    if results.failure:
        raise results.failure


def show(config: DemoConfig, summary: dict[str, Any], compared: tuple[str, Any, Any]) -> None:
    """The comparison, what was read back, and why SGD can be worse than the mean: for a person, wherever it goes."""
    table(*compared)
    names = {"SGD": "sgd_rmse", "mean": "mean_rmse", "optimum": "optimum_rmse"}
    row = [f"{summary['data_rows']:,}", str(config.parts), *(f"{summary[key]:,.5g}" for key in names.values())]
    table("Read back from S3", ["rows", "parts", *(f"{name} RMSE" for name in names)], [row])
    if summary["sgd_rmse"] > summary["mean_rmse"]:
        say(ABOVE_THE_MEAN)


def local_folder(config: DemoConfig) -> RunFolder:
    """`config.out`, claimed for this demo."""
    uri = canonical(config.out)
    if not uri.startswith("file://"):
        raise ConfigError(f"--out is {config.out!r}: the demo's S3 ends with it, so name a local folder")
    folder = RunFolder(uri)
    folder.claim(config.verb, config.model_dump())
    return folder


def fetch(run: RunFolder) -> dict[str, bytes]:
    """A run's results by name."""
    return {name: run.read(name) for name in run.results()}


@contextmanager
def own_environment() -> Iterator[None]:
    """Hides the user's AWS settings, profiles and proxies from everything in the block, and brings them back after it:
    the embedded S3 is the only one there is, and whatever is written goes to it."""
    before = dict(os.environ)
    for name in before:
        if name.upper().startswith("AWS_") or name.upper().endswith("_PROXY"):
            del os.environ[name]
    nothing = dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"), os.devnull)
    os.environ.update(nothing, NO_PROXY="*")  # named, and not just absent: macOS would ask its network settings
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
