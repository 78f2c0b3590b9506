"""One entry in the making: blocks go in as they are parsed, and it appears in the cache when it is whole."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np

from cabrank.data.cache_entry import EntryWriter, Facts, Key, Matrix
from cabrank.data.cache_folder import CacheFolder


class Fill:
    """Made by `DecodedCache.begin`. A context manager: what was not committed at its end leaves no trace."""

    def __init__(
        self,
        key: Key | None,
        columns: int,
        dtype: str,
        *,
        temp: BinaryIO | None,
        files: CacheFolder,
        done: Callable[[Key, os.stat_result, int], None],
        failed: Callable[[OSError], None],
    ) -> None:
        self._key, self._columns, self._dtype = key, columns, dtype
        self._temp, self._files = temp, files
        self._done, self._failed = done, failed
        self._writer = EntryWriter(temp) if temp else None
        self._rows = 0

    @property
    def stores(self) -> bool:
        """Whether blocks go to the disk; False where there was no room, or no disk."""
        return self._writer is not None

    def add(self, matrix: Matrix) -> None:
        """The next rows, [n, columns], row-major, of the dtype that was announced; a `TypeError` for others."""
        if matrix.shape != (len(matrix), self._columns) or matrix.dtype.str != self._dtype:
            raise TypeError(f"{matrix.dtype} {matrix.shape} is not [n, {self._columns}] of {self._dtype}")
        if not matrix.flags.c_contiguous:
            raise TypeError("a matrix in the cache is row-major, in one piece")
        if self._writer is not None:
            try:
                self._writer.add(matrix)
            except OSError as error:
                self._give_up(error)
        self._rows += len(matrix)

    def commit(self, facts: Facts) -> bool:
        """Publishes the rows that were added, with `facts`, a small mapping that JSON can hold; whether it did."""
        if self._temp is None or self._writer is None or self._key is None:
            return False
        key, temp = self._key, Path(self._temp.name)
        try:
            self._writer.finish(key.digest, key.uri, (self._rows, self._columns), self._dtype, facts)
            temp.replace(self._files.entry(key.digest))  # still locked: nobody takes it for a dead process's
            written = os.fstat(self._temp.fileno())
            self._temp.close()
        except FileNotFoundError:
            self.close()  # somebody cleared the cache meanwhile
            return False
        except OSError as error:
            self._give_up(error)
            return False
        self._temp = self._writer = None
        self._done(key, written, self._rows * self._columns * np.dtype(self._dtype).itemsize)
        return True

    def close(self) -> None:
        """Removes what was not committed."""
        if self._temp is not None:
            self._files.remove(Path(self._temp.name).name)
            with suppress(OSError):  # the rest of the buffer, onto a disk that is full
                self._temp.close()
        self._temp = self._writer = None

    def _give_up(self, error: OSError) -> None:
        self.close()
        self._failed(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
