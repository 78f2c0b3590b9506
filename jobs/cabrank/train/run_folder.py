"""The folder that a run leaves, local or on S3: one claim before the work, whole files after it, `summary.json` last.

    config.json        written by `claim`: who made this folder, and with which settings
    metrics.csv  model.safetensors  *.png  report.html
    summary.json       the figures; where it is, the run has ended and the files beside it are its own

A folder is claimed when it is empty, or when its config.json says that a cabrank run made it: then that run's files are
removed, and nothing else is. A folder that holds anything and no run is refused: `--out` was not meant to point there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from cabrank.console import json_safe
from cabrank.errors import ConfigError, ObjectMissingError
from cabrank.store import StorageOptions, open_store

CONFIG, SUMMARY = "config.json", "summary.json"
RESULTS = (SUMMARY, "metrics.csv", "reading.csv", "model.safetensors", "loss.png", "report.html")
"""Every name that a run may write beside its config; a job with another one adds it here."""


class RunFolder:
    """A run's folder at `uri`; `storage_options` as for `open_store`. Opening it touches nothing."""

    def __init__(self, uri: str, storage_options: StorageOptions | None = None) -> None:
        self.uri = uri.rstrip("/") + "/"
        self._store = open_store(self.uri, storage_options)

    def claim(self, job: str, settings: Mapping[str, object]) -> None:
        """Makes the folder this run's, before any work is put into it: `ConfigError` where it is somebody else's,
        `StorageError` where it cannot be written to. A former run's files are gone afterwards, others are untouched."""
        if self._holds_run():
            for name in RESULTS:  # the summary first: without it nobody takes what is left for a whole run
                self._store.delete(self.uri + name)
        else:
            self._refuse_strangers()
        self._write_json(CONFIG, {"job": job, "cabrank": cabrank_version(), "config": dict(settings)})

    def write(self, name: str, data: bytes) -> str:
        """Publishes one of `RESULTS`, whole; returns its canonical URI."""
        if name not in RESULTS:
            raise ValueError(f"{name!r} is not in RESULTS, so that the next run would not remove it")
        return self._store.put(self.uri + name, data).uri

    def read(self, name: str) -> bytes:
        """The whole of one file; `ObjectMissingError` where the run has not left it."""
        return self._store.read(self._store.stat(self.uri + name))

    def finish(self, summary: Mapping[str, object]) -> None:
        """Publishes summary.json, after everything else; numbers that are not finite become null."""
        self._write_json(SUMMARY, summary)

    def _write_json(self, name: str, values: Mapping[str, object]) -> None:
        text = json.dumps(json_safe(values), indent=2, allow_nan=False, ensure_ascii=False) + "\n"
        self._store.put(self.uri + name, text.encode())

    def _holds_run(self) -> bool:
        try:
            config = json.loads(self.read(CONFIG))
        except (ObjectMissingError, ValueError):  # none, or one that is no JSON
            return False
        return isinstance(config, dict) and {"job", "cabrank"} <= config.keys()

    def _refuse_strangers(self) -> None:
        found = next(iter(self._store.list(self.uri)), None)
        if found is not None:
            raise ConfigError(
                f"--out is {self.uri!r}, which holds {found.uri} and no cabrank run: nothing there is overwritten; "
                "name an empty or a new folder"
            )


def cabrank_version() -> str:
    """Of the installed package; `source` where it runs without having been installed."""
    try:
        return version("cabrank")
    except PackageNotFoundError:
        return "source"
