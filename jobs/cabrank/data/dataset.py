"""`ObjectStorageDataset`: part files as batches of tensors, each row once an epoch, equal steps on all ranks."""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from cabrank.data.arguments import DTYPES, batch_rows, dtype_name, open_cache, rank_of_world, whole
from cabrank.data.batches import Buffers, Piece, RowStream, shuffled, span_pieces
from cabrank.data.cached import PartCache
from cabrank.data.contracts import Contract
from cabrank.data.counting import part_counts
from cabrank.data.fetch import Fetcher
from cabrank.data.ledger import Ledger
from cabrank.data.listing import Part, list_parts
from cabrank.data.parse import Matrix, Schema, largest, matrix_dtype
from cabrank.data.reading import Block, cores, part_schema, read_blocks
from cabrank.data.resume import Position
from cabrank.data.shards import Plan, Tail, joined, make_plan
from cabrank.data.transform import Bindable, RowTransform
from cabrank.errors import CabrankError, ConfigError
from cabrank.nulls import NullPolicy
from cabrank.store import StorageOptions, Store, open_store


class ObjectStorageDataset(IterableDataset[torch.Tensor | tuple[torch.Tensor, torch.Tensor]]):
    """Batches of rows from CSV parts (`.csv`, `.csv.gz`, `.csv.zst`) or Parquet parts under any folder or glob.

    Yields tensors `[B, C]`, the label in column 0 and the features after it, or with `weights=True` pairs of such a
    tensor and its weights `[B]`, 0 for a repeated row and 1 for all others. Pass it to `DataLoader(ds,
    batch_size=None)`; with `num_workers=0` the parts are parsed on one thread a core and no worker process is needed.

        glob            a path, file://, s3:// or https:// folder, file or glob
        partitions_glob where the counts (`id,count`) lie, when not in `.meta/shards` beside the parts
        storage_options fsspec's and s3fs's words: anon, key, secret, token, profile, endpoint_url, client_kwargs, …
        batch_size      rows a step and rank, ≥ 1
        shard_size      the original class's word for the same; the smaller of the two counts
        worker          this process's rank, 0 … replicas - 1
        replicas        how many ranks share the data
        cache_dir       folder for decoded parts, so that the second epoch does not parse; "auto" is one in the user's
                        cache folder, None: no cache
        cache_bytes     what the cache may take on disk; half of what is free when None
        label           a column's name, or its index; the first column when None
        columns         names of the features, as a list or comma-separated; all other columns when None
        nulls           raise | drop | fill=VALUE: empty fields, NaN, infinity. `drop` makes their batch smaller.
                        Single columns may differ: "drop,tip:fill=0,hour:raise"
        dtype           float64 | float32 | bfloat16, a name or torch's
        tail            pad | drop | uneven (see `cabrank.data.shards`); a batch under `cycle` has no tail
        cycle           start over at the end of the data, within a batch too; the iterator then never ends
        seed            shuffles the order of the parts, anew in each epoch; None keeps the listing's
        shuffle_window  shuffles the rows, too, within windows of so many rows; needs a seed. 0: not at all. The order
                        depends on seed and epoch alone, and not on ranks, workers or batch size
        weights         yield pairs
        features        fitted `cabrank.features.engineer.Features`: batches hold the columns that these make
        threads         that parse; one a core when None

    Raises, when made: `NoDataError` (no parts, no rows), `ConfigError` (arguments), `SchemaError`, `MetadataError`,
    `StorageError`. While read: `BadValueError`, `SchemaError` and `ChangedError`, with URI, row and column.
    """

    def __init__(
        self,
        glob: str | os.PathLike[str],
        partitions_glob: str | None = None,
        storage_options: StorageOptions | None = None,
        batch_size: int | None = None,
        shard_size: int | None = None,
        worker: int | None = None,
        replicas: int | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        *,
        cache_bytes: int | None = None,
        label: str | int | None = None,
        columns: str | Sequence[str] | None = None,
        nulls: str = "raise",
        dtype: str | torch.dtype = "float64",
        tail: Tail | None = None,
        cycle: bool = False,
        seed: int | None = None,
        shuffle_window: int = 0,
        weights: bool = False,
        features: Bindable | None = None,
        threads: int | None = None,
    ) -> None:
        super().__init__()
        size = batch_rows(batch_size, shard_size)
        self.rank, self.world = rank_of_world(worker, replicas)
        seed = None if seed is None else whole("seed", seed, 0)
        self.threads = None if threads is None else whole("threads", threads, 1)
        self.window = whole("shuffle_window", shuffle_window, 0)
        if self.window and seed is None:
            raise ConfigError(f"shuffle_window is {self.window}: shuffling rows needs a seed")
        if cycle and tail is not None:
            raise ConfigError(f"tail is {tail!r}: under cycle=True every batch is full: leave it out")
        self.cycle, self.weights = cycle, weights
        self.nulls, self._dtype = NullPolicy.of(nulls), dtype_name(dtype)
        empty = Plan((), size, self.world, tail or "pad", seed)  # checks all that needs no data before any is looked at
        cache = open_cache(cache_dir, cache_bytes)

        self.glob = os.fspath(glob)
        self.store: Store = open_store(self.glob, storage_options)
        self.parts: list[Part] = list_parts(self.glob, self.store)
        self.schema: Schema = part_schema(self.parts, self.store, label, columns)
        self.features: RowTransform | None = features.bind(self.schema.columns) if features else None
        self.nulls.check(self.schema.header, largest(self._dtype))
        self._cache = PartCache(cache, self.schema, self.nulls, self._read_dtype) if cache else None
        counts = part_counts(self.parts, self.store, self.schema, partitions_glob)
        self.plan: Plan = make_plan(counts, batch_size=size, world=self.world, tail=empty.tail, seed=seed)
        if not len(self.plan.lane(self.rank)) and cycle:
            raise ConfigError(f"replicas is {self.world}: {self.plan.total} rows cannot be cycled over so many ranks")
        self._resume: Position | None = None
        self._here = Position.start(self.plan)
        self._buffers, self._fetcher = Buffers(), Fetcher(self.store)
        self._contract = (
            Contract.of(self.parts, self.schema.columns, self._read_dtype, self.store) if not self.nulls.fills else None
        )
        self.ledger = Ledger()
        """What reading has cost in this process: `ledger.latest` of the latest pass, `ledger.total` of all."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the tensors' columns, the label first."""
        return self.features.columns if self.features else self.schema.columns

    @property
    def _read_dtype(self) -> str:
        return "float64" if self.features else self._dtype  # of features, rounding comes last

    @property
    def dropped(self) -> int:
        """Rows that nulls=drop has left out so far, in this process."""
        return self.ledger.total.dropped_rows

    @property
    def rows(self) -> int:
        """Rows of all parts together."""
        return self.plan.total

    def __len__(self) -> int:
        """Batches that the next pass has on this rank, exactly; a TypeError under `cycle`, which has no end."""
        if self.cycle:
            raise TypeError("a dataset with cycle=True has no length")
        if self._resume is None:
            return self.plan.steps(self.rank)
        here = self._resume
        plan, _, _ = here.resume(self.plan, here.worker or 0, here.workers, cycle=False)
        return plan.steps(self.rank) - (here.steps if plan.legs == here.legs else 0)

    @property
    def epoch(self) -> int:
        """Of the pass that goes on, or comes next; a pass that ends moves it on by one."""
        return self.plan.epoch

    def set_epoch(self, epoch: int) -> None:
        """With a seed, the order follows from the epoch. With DataLoader workers call it before each pass, as for a
        sampler: what moves on there are their copies of the dataset. Another epoch forgets a state that was loaded."""
        if epoch != self.plan.epoch:
            self._resume = None
        self.plan = replace(self.plan, epoch=epoch)

    def state_dict(self, *, steps: int | None = None, workers: int = 1) -> dict[str, Any]:
        """Where the latest pass stands: small, of plain numbers and texts, the same on every rank of one job.

        Without arguments, behind the batch that was handed out last. Behind a DataLoader with `workers` processes only
        the loop knows how many batches it has taken: say it, in `steps`. (torchdata's StatefulDataLoader does so.)
        """
        here = self._here
        if steps is not None:
            start = self._resume or Position.start(self.plan)
            here = start.after(steps, self.plan, workers, cycle=self.cycle)
        return here.state(self._fingerprint())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next pass go on behind `state`: with the same ranks, workers and batch size on the very next batch,
        with any others on exactly the rows that were not read. `MetadataError` where it was saved of other data."""
        here = Position.of(state, self._fingerprint())
        self.plan = replace(self.plan, epoch=here.epoch)
        self._resume = self._here = here

    def _fingerprint(self) -> dict[str, Any]:
        """What has to be the same for a position to mean the same rows."""
        names = json.dumps([[part.name, rows] for part, rows in zip(self.parts, self.plan.rows, strict=True)])
        return {
            "rows": self.plan.total,
            "parts": len(self.parts),
            "plan": hashlib.sha256(names.encode()).hexdigest()[:16],
            "seed": self.plan.seed,
            "window": self.window,
            "tail": None if self.cycle else self.plan.tail,
        }

    def __iter__(self) -> Iterator[torch.Tensor | tuple[torch.Tensor, torch.Tensor]]:
        """One epoch, or no end of them under `cycle`; in a DataLoader's worker, that worker's share."""
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        resume, self._resume = self._resume, None
        plan, share, had = self.plan, worker, 0
        if resume:
            plan, share, had = resume.resume(plan, worker, workers, cycle=self.cycle)
        here = Position(
            plan.epoch, plan.legs, plan.world, workers, plan.batch_size, had, worker if workers > 1 else None
        )
        self.ledger.begin()
        batches = (self._cycled if self.cycle else self._epoch)(plan, share, workers, had)
        while (batch := self._waited(batches)) is not None:
            piece, owned = batch
            here = self._here = replace(here, steps=here.steps + 1)
            values = torch.from_numpy(self._made(piece.kept)).to(DTYPES[self._dtype])  # a copy for bfloat16 alone
            yield (values, self._weights(piece, owned)) if self.weights else values
        self.plan = replace(self.plan, epoch=plan.epoch + 1)
        self._here = Position.start(self.plan)

    def _waited(self, batches: Iterator[tuple[Piece, int]]) -> tuple[Piece, int] | None:
        """The next batch, and what it took in the ledger."""
        with self.ledger.timing("wait_seconds"):
            batch = next(batches, None)
        if batch is not None:
            self.ledger.add(batches=1, rows=len(batch[0].values), dropped_rows=len(batch[0].bad))
        return batch

    def _epoch(self, plan: Plan, worker: int, workers: int, had: int) -> Iterator[tuple[Piece, int]]:
        """Each batch of one worker behind the ones it had, and how many of its rows, the first ones, weigh 1."""
        batches = [plan.batch(self.rank, step) for step in plan.worker_steps(self.rank, worker, workers)[had:]]
        if not batches:
            return
        places = range(batches[0].start, batches[-1].stop)
        with closing(self._pieces([(plan, places)], workers)) as pieces:
            rows, piece = RowStream(pieces, self._buffers), None
            for batch in batches:
                # behind the stream stands a batch of nothing but its last row once more
                piece = rows.take(batch.stop - batch.start) or _last_row(piece)
                yield _repeat_last(piece, batch.repeated) if batch.repeated else piece, batch.owned
            if self._cache:  # the rest of the last part goes there
                deque(pieces, maxlen=0)

    def _cycled(self, plan: Plan, worker: int, workers: int, had: int) -> Iterator[tuple[Piece, int]]:
        """The same without an end: each worker goes round and round in its share of the rank's lane."""

        def share(plan: Plan) -> range:
            lane = plan.lane(self.rank)
            return lane[len(lane) * worker // workers : len(lane) * (worker + 1) // workers]

        def turns() -> Iterator[tuple[Plan, range]]:
            following, skip = plan, had * plan.batch_size
            while True:
                if skip < len(share(following)):
                    yield following, share(following)[skip:]
                skip = max(0, skip - len(share(following)))
                following = replace(following, epoch=following.epoch + 1, legs=())

        if not share(replace(plan, legs=())):
            return
        with closing(self._pieces(turns(), workers)) as pieces:
            rows = RowStream(pieces, self._buffers)
            while (piece := rows.take(plan.batch_size)) is not None:
                yield piece, plan.batch_size

    def _pieces(self, turns: Iterable[tuple[Plan, range]], workers: int) -> Generator[Piece]:
        """The rows at the places that each turn names, in their order."""
        threads = self.threads or max(1, cores() // workers)
        for plan, places in turns:
            windows = list(plan.windows(places.start, places.stop, self.window))
            ranges = joined(window.rows for window in windows)
            spans = [span for rows in ranges for span in plan.spans(rows.start, rows.stop)]
            if self._cache:  # the next turn's order is not known to be this one's, but it is the best guess
                self._cache.cache.needed(2 * [self._cache.key(self.parts[span.part]) for span in spans])
            with closing(span_pieces(spans, self.parts, plan.rows, partial(self._read, threads))) as pieces:
                yield from shuffled(pieces, windows, self._buffers) if self.window else pieces

    def _made(self, rows: Matrix) -> Matrix:
        """The rows [n, C] with the features that were asked for; computed in float64, like those that a CSV holds."""
        return self.features(rows).astype(matrix_dtype(self._dtype), copy=False) if self.features else rows

    def _weights(self, piece: Piece, owned: int) -> torch.Tensor:
        """[B], as long as the batch after nulls=drop: 1 for the rank's own rows, 0 for repeated ones."""
        weights = np.zeros(len(piece.values), piece.values.dtype)
        weights[:owned] = 1
        return torch.from_numpy(np.delete(weights, piece.bad)).to(DTYPES[self._dtype])

    def _read(self, threads: int, parts: Sequence[Part], stops: Sequence[int], rows: Sequence[int]) -> Iterator[Block]:
        blocks = read_blocks(
            parts, self.store, self.schema, self.nulls,
            dtype=self._read_dtype, stops=stops, threads=threads, fetcher=self._fetcher, cache=self._cache, rows=rows,
            ledger=self.ledger,
        )  # fmt: skip
        return self._contract.hold(blocks) if self._contract else blocks


def _last_row(piece: Piece | None) -> Piece:
    if piece is None:
        raise CabrankError("the plan's first batch has no row")
    return piece.rows(len(piece.values) - 1, len(piece.values))


def _repeat_last(piece: Piece, times: int) -> Piece:
    """The piece with its last row `times` more; left out as often by nulls=drop, if it is."""
    last = _last_row(piece)
    behind = len(piece.values) + np.arange(times if len(last.bad) else 0)
    return Piece(np.concatenate([piece.values, *[last.values] * times]), np.concatenate([piece.bad, behind]))
