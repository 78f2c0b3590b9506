"""`ObjectStorageDataset`: part files as batches of tensors, each row once an epoch, equal steps on all ranks."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import repeat

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from cabrank.data.batches import Buffers, Piece, RowStream, span_pieces
from cabrank.data.cache import DecodedCache
from cabrank.data.cached import PartCache
from cabrank.data.fetch import Fetcher
from cabrank.data.listing import Part, list_parts
from cabrank.data.metadata import read_counts
from cabrank.data.parse import Matrix, Schema
from cabrank.data.reading import Block, cores, part_schema, read_blocks
from cabrank.data.shards import Plan, Tail, make_plan
from cabrank.data.transform import Bindable, RowTransform
from cabrank.errors import CabrankError, ConfigError
from cabrank.nulls import NullPolicy
from cabrank.store import StorageOptions, Store, open_store

log = logging.getLogger("cabrank")
DTYPES = {"float64": torch.float64, "float32": torch.float32}


class ObjectStorageDataset(IterableDataset[torch.Tensor | tuple[torch.Tensor, torch.Tensor]]):
    """Batches of rows from CSV parts (`.csv`, `.csv.gz`) under any folder or glob.

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
        label, columns  names; the first column and all others when None
        nulls           raise | drop | fill=VALUE: empty fields, NaN, infinity. `drop` makes their batch smaller
        dtype           float64 | float32, a name or torch's
        tail            pad | drop | uneven (see `cabrank.data.shards`); a batch under `cycle` has no tail
        cycle           start over at the end of the data, within a batch too; the iterator then never ends
        seed            shuffles the order of the parts, anew in each epoch (`set_epoch`); None keeps it
        weights         yield pairs
        features        fitted `cabrank.features.engineer.Features`: batches hold the columns that these make
        threads         that parse; one a core when None

    Raises, when made: `NoDataError` (no parts, no rows), `ConfigError` (arguments), `SchemaError`, `MetadataError`,
    `StorageError`. While read: `BadValueError`, `SchemaError` and `ChangedError`, with URI, row and column.
    """

    def __init__(
        self,
        glob: str,
        partitions_glob: str | None = None,
        storage_options: StorageOptions | None = None,
        batch_size: int | None = None,
        shard_size: int | None = None,
        worker: int | None = None,
        replicas: int | None = None,
        cache_dir: str | None = None,
        *,
        cache_bytes: int | None = None,
        label: str | None = None,
        columns: str | Sequence[str] | None = None,
        nulls: str = "raise",
        dtype: str | torch.dtype = "float64",
        tail: Tail | None = None,
        cycle: bool = False,
        seed: int | None = None,
        weights: bool = False,
        features: Bindable | None = None,
        threads: int | None = None,
    ) -> None:
        super().__init__()
        if cycle and tail is not None:
            raise ConfigError(
                f"tail is {tail!r}: under cycle=True every batch is full and there is no tail; leave it out"
            )
        self.glob, self.cycle, self.weights, self.threads = glob, cycle, weights, threads
        self.rank, self.world = worker or 0, 1 if replicas is None else replicas
        self.nulls, self._numpy_dtype = NullPolicy.of(nulls), _dtype_name(dtype)
        self._read_dtype = "float64" if features else self._numpy_dtype  # so that rounding comes last
        self.store: Store = open_store(glob, storage_options)
        self.parts: list[Part] = list_parts(glob, self.store)
        self.schema: Schema = part_schema(self.parts, self.store, label, columns)
        self.features: RowTransform | None = features.bind(self.schema.columns) if features else None
        counts = part_counts(self.parts, self.store, self.schema, partitions_glob)
        self.plan: Plan = make_plan(
            counts, batch_size=_batch_size(batch_size, shard_size), world=self.world, tail=tail or "pad", seed=seed
        )
        if not len(self.plan.lane(self.rank)) and cycle:
            raise ConfigError(f"replicas is {self.world}: {self.plan.total} rows cannot be cycled over so many ranks")
        self._buffers = Buffers()
        self._fetcher = Fetcher(self.store)
        self._cache = self._open_cache(cache_dir, cache_bytes)
        self.dropped = 0
        """Rows that nulls=drop has left out so far, in this process."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the tensors' columns, the label first."""
        return self.features.columns if self.features else self.schema.columns

    @property
    def rows(self) -> int:
        """Rows of all parts together."""
        return self.plan.total

    def __len__(self) -> int:
        """Batches an epoch on this rank, exactly; a TypeError under `cycle`, which has no end."""
        if self.cycle:
            raise TypeError("a dataset with cycle=True has no length")
        return self.plan.steps(self.rank)

    def set_epoch(self, epoch: int) -> None:
        """With a seed, the order of the parts follows from the epoch: call it before each pass, as for a sampler."""
        self.plan = replace(self.plan, epoch=epoch)

    def __iter__(self) -> Iterator[torch.Tensor | tuple[torch.Tensor, torch.Tensor]]:
        """One epoch, or no end of them under `cycle`; in a DataLoader's worker, that worker's share."""
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        batches = self._cycled(worker, workers) if self.cycle else self._epoch(worker, workers)
        for piece, own in batches:
            self.dropped += len(piece.bad)
            values = torch.from_numpy(self._made(piece.kept))
            yield (values, self._weights(piece, own)) if self.weights else values

    def _epoch(self, worker: int, workers: int) -> Iterator[tuple[Piece, int]]:
        """Each batch of one worker, and how many of its rows, the first ones, have a weight of 1."""
        plan = self.plan
        batches = [plan.batch(self.rank, step) for step in plan.worker_steps(self.rank, worker, workers)]
        if not batches:
            return
        with closing(self._pieces([range(batches[0].start, batches[-1].stop)], workers)) as pieces:
            rows, piece = RowStream(pieces, self._buffers), None
            for batch in batches:
                # behind the stream stands a batch of nothing but its last row once more
                piece = rows.take(batch.stop - batch.start) or _last_row(piece)
                yield _repeat_last(piece, batch.repeated) if batch.repeated else piece, batch.owned
            if self._cache:  # the rest of the last part goes there
                deque(pieces, maxlen=0)

    def _cycled(self, worker: int, workers: int) -> Iterator[tuple[Piece, int]]:
        """The same without an end: each worker goes round and round in its share of the rank's lane."""
        lane, size = self.plan.lane(self.rank), self.plan.batch_size
        share = lane[len(lane) * worker // workers : len(lane) * (worker + 1) // workers]
        if not share:
            return
        with closing(self._pieces(repeat(share), workers)) as pieces:
            rows = RowStream(pieces, self._buffers)
            while (piece := rows.take(size)) is not None:
                yield piece, size

    def _pieces(self, ranges: Iterable[range], workers: int) -> Generator[Piece]:
        """The rows of one range of the row space after the other, each of a later epoch's order."""
        threads = self.threads or max(1, cores() // workers)
        for turn, rows in enumerate(ranges):
            plan = replace(self.plan, epoch=self.plan.epoch + turn)
            spans = list(plan.spans(rows.start, rows.stop))
            if self._cache:  # next round's order is not known to be this one's, but it is the best guess
                self._cache.cache.needed(2 * [self._cache.key(self.parts[span.part]) for span in spans])
            yield from span_pieces(spans, self.parts, plan.rows, partial(self._read, threads))

    def _made(self, rows: Matrix) -> Matrix:
        """The rows [n, C] with the features that were asked for; computed in float64, like those that a CSV holds."""
        return self.features(rows).astype(self._numpy_dtype, copy=False) if self.features else rows

    def _weights(self, piece: Piece, owned: int) -> torch.Tensor:
        """[B], as long as the batch after nulls=drop: 1 for the rank's own rows, 0 for repeated ones."""
        weights = torch.zeros(len(piece.values), dtype=DTYPES[self._numpy_dtype])
        weights[:owned] = 1
        return torch.from_numpy(np.delete(weights.numpy(), piece.bad))

    def _read(self, threads: int, parts: Sequence[Part], stops: Sequence[int], rows: Sequence[int]) -> Iterator[Block]:
        return read_blocks(
            parts, self.store, self.schema, self.nulls,
            dtype=self._read_dtype, stops=stops, threads=threads, fetcher=self._fetcher, cache=self._cache, rows=rows,
        )  # fmt: skip

    def _open_cache(self, folder: str | None, limit_bytes: int | None) -> PartCache | None:
        if folder is None:
            return None
        cache = DecodedCache(None if folder == "auto" else folder, limit_bytes)
        return PartCache(cache, self.schema, self.nulls, self._read_dtype)


def part_counts(parts: Sequence[Part], store: Store, schema: Schema, partitions_glob: str | None = None) -> list[int]:
    """Rows of each part: from the metadata beside it, or, where there is none, counted now, and that is said."""
    known = read_counts(parts, store, partitions_glob)
    # a part that is listed with no rows costs next to nothing to look at, and would otherwise never be looked at
    unknown = [part for part in parts if not known.get(part.uri)]
    if unknown:
        size = sum(part.size or 0 for part in unknown)
        log.log(
            logging.WARNING if size > 1e6 or len(unknown) == len(parts) else logging.INFO,
            "counting the rows of %d of %d parts (%.1f MB): no metadata; cabrank shard %s does it once for all",
            len(unknown), len(parts), size / 1e6, parts[0].folder.removesuffix("/"),
        )  # fmt: skip
    one_column = Schema(schema.columns[:1], schema.header)
    blocks = read_blocks(unknown, store, one_column, NullPolicy("fill"))
    counted = {block.part.uri: block.end_row for block in blocks if block.last}
    return [counted[part.uri] if part.uri in counted else known[part.uri] for part in parts]


def _last_row(piece: Piece | None) -> Piece:
    if piece is None:
        raise CabrankError("the plan's first batch has no row")
    return piece.rows(len(piece.values) - 1, len(piece.values))


def _repeat_last(piece: Piece, times: int) -> Piece:
    """The piece with its last row `times` more; left out as often by nulls=drop, if it is."""
    last = _last_row(piece)
    behind = len(piece.values) + np.arange(times if len(last.bad) else 0)
    return Piece(np.concatenate([piece.values, *[last.values] * times]), np.concatenate([piece.bad, behind]))


def _batch_size(batch_size: int | None, shard_size: int | None) -> int:
    """The smaller of the two, as in the original class; 1 where neither is given, as in a DataLoader."""
    for name, value in (("batch_size", batch_size), ("shard_size", shard_size)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ConfigError(f"{name} is {value!r}: it counts rows and must be a whole number, 1 or more")
    return min((size for size in (batch_size, shard_size) if size is not None), default=1)


def _dtype_name(dtype: str | torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ConfigError(f"dtype is {name!r}: it must be one of {', '.join(DTYPES)}")
    return name
