"""The folder that a run leaves, local or on S3: one claim before the work, all files after it, `summary.json` last.

    config.json        who made this folder, and with which settings
    metrics.csv  reading.csv  model.safetensors  features.json  *.png  report.html
    summary.json       the figures; where it is, the run has ended and the files beside it are its own

A folder can be claimed when it is empty, or when its config.json says that a cabrank run made it. A folder that holds
anything and no run is refused: `--out` was not meant to point there. A former run stays whole until `publish`, so that
one that fails or is stopped costs nothing; then its files are replaced or removed, and nothing else is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

from cabrank.console import json_safe
from cabrank.errors import ConfigError, ObjectMissingError
from cabrank.store import StorageOptions, canonical, open_store

CONFIG, SUMMARY = "config.json", "summary.json"
RESULTS = (SUMMARY, "metrics.csv", "reading.csv", "model.safetensors", "features.json", "loss.png", "report.html")
"""Every name that a run may write beside its config; a job with another one adds it here."""


class RunFolder:
    """A run's folder at `uri`; `storage_options` as for `open_store`. Opening it touches nothing."""

    def __init__(self, uri: str, storage_options: StorageOptions | None = None) -> None:
        self.uri = canonical(uri).rstrip("/") + "/"
        self._store = open_store(self.uri, storage_options, writable=True)

    def claim(self, job: str, settings: Mapping[str, object]) -> None:
        """Sees to it, before any work is put into it, that the folder is this run's to write: `ConfigError` where it is
        somebody else's, `StorageError` where it cannot be written to. A former run there stays as it is."""
        former = self._former_config()
        if former is not None:
            self._store.put(self.uri + CONFIG, former)  # the same bytes: only whether they can be written is new
        else:
            self._refuse_strangers()
            self._write_json(CONFIG, _config(job, settings))

    @contextmanager
    def working(self) -> Iterator[None]:
        """The time between `claim` and `publish`: an interruption leaves with a note of what became of the folder."""
        try:
            yield
        except KeyboardInterrupt as stop:
            stop.add_note(f"{self.uri} was left as it was")
            raise

    def publish(
        self, job: str, settings: Mapping[str, object], files: Mapping[str, bytes], summary: Mapping[str, object]
    ) -> None:
        """Replaces what a former run left by `files`, whose names are among `RESULTS`, and by the summary, in which
        numbers that are not finite become null."""
        if strange := files.keys() - set(RESULTS):
            raise ValueError(f"{strange} are not in RESULTS, so that the next run would not remove them")
        for name in self.results():  # the summary first: without it nobody takes a mixture for a whole run
            if name not in files:
                self._store.delete(self.uri + name)
        self._write_json(CONFIG, _config(job, settings))
        for name, data in files.items():
            self._store.put(self.uri + name, data)
        self._write_json(SUMMARY, summary)

    def results(self) -> list[str]:
        """Which of `RESULTS` are there, the summary first."""
        there = {info.uri.removeprefix(self.uri) for info in self._store.list(self.uri)}
        return [name for name in RESULTS if name in there]

    def read(self, name: str) -> bytes:
        """The whole of one file; `ObjectMissingError` where the run has not left it."""
        return self._store.read(self._store.stat(self.uri + name))

    def _write_json(self, name: str, values: Mapping[str, object]) -> None:
        text = json.dumps(json_safe(values), indent=2, allow_nan=False, ensure_ascii=False) + "\n"
        self._store.put(self.uri + name, text.encode())

    def _former_config(self) -> bytes | None:
        """The config.json of a cabrank run that stands here."""
        try:
            data = self.read(CONFIG)
            config = json.loads(data)
        except (ObjectMissingError, ValueError):  # none, or one that is no JSON
            return None
        return data if isinstance(config, dict) and {"job", "cabrank"} <= config.keys() else None

    def _refuse_strangers(self) -> None:
        found = next(iter(self._store.list(self.uri)), None)
        if found is not None:
            raise ConfigError(
                f"--out is {self.uri!r}, which holds {found.uri} and no cabrank run: nothing there is overwritten; "
                "name an empty or a new folder"
            )


def _config(job: str, settings: Mapping[str, object]) -> dict[str, object]:
    return {"job": job, "cabrank": cabrank_version(), "config": dict(settings)}


def cabrank_version() -> str:
    """Of the installed package; `source` where it runs without having been installed."""
    try:
        return version("cabrank")
    except PackageNotFoundError:
        return "source"
