"""Every error that cabrank raises on purpose, each with the exit code a platform's retry rule can read.

    CabrankError                    70  a fault of ours
    ├── ConfigError                  2  arguments or configuration that cannot work
    ├── DataError                    3  data that is bad, or is not there
    │   ├── NoDataError                 nothing matches, or nothing but headers
    │   ├── SchemaError                 header, columns or a ragged row
    │   ├── BadValueError               a word, an empty field, NaN or infinity in a number's place
    │   ├── MetadataError               .meta contradicts itself or its parts
    │   ├── ChangedError                an object was replaced after it was planned
    │   └── DivergedError               a loss that is no longer a finite number
    ├── GroupError                   4  the other ranks of a training cannot be worked with
    │   ├── RendezvousError             not all of them came together
    │   ├── PeerLostError               one that was there is gone, hangs, or is cut off
    │   └── DesyncError                 they are at different steps
    └── StorageError                 5  the store cannot be used
        ├── MissingBucketError
        ├── ObjectMissingError          (a listing raises NoDataError instead)
        ├── AccessError                 credentials absent, or not allowed to
        │   └── ExpiredError            transient: credentials past their end; the next try takes fresh ones
        └── UnreachableError            transient: no answer, a failure of the server's, a short or damaged body
            └── ThrottledError          transient: the store asks for fewer requests

The three transient ones are tried again (store/retry.py) before anyone sees them; whoever does see one reads in its
message how often and for how long it was tried.

The last code of the table, 75 (stopped, resumable), is no error: a checkpoint is saved.
A message says what went wrong, the offending value, where (URI, row, column), and what to do about it.
"""

from __future__ import annotations

from typing import ClassVar


class CabrankError(Exception):
    """Base of all errors raised on purpose; `exit_code` is what the process ends with."""

    exit_code: ClassVar[int] = 70


class ConfigError(CabrankError):
    """Arguments or configuration that cannot work, found before anything was read or written."""

    exit_code = 2


class DataError(CabrankError):
    """The data is bad, or there is none."""

    exit_code = 3


class NoDataError(DataError):
    """No object matches, or what matches holds no rows."""


class SchemaError(DataError):
    """A header that is missing or different from the plan's, or a row with another number of fields."""


class BadValueError(DataError):
    """A field that is no finite number, located by URI, row and column."""


class MetadataError(DataError):
    """The files under `.meta` contradict each other or the parts they describe."""


class ChangedError(DataError):
    """An object is not the one that was planned: it was replaced, grew, shrank or vanished."""


class DivergedError(DataError):
    """Training reached a loss or gradient that is not finite."""


class GroupError(CabrankError):
    """Training on several ranks cannot go on, for want of one of them."""

    exit_code = 4


class RendezvousError(GroupError):
    """The ranks did not come together: a name that does not resolve, a port that does not answer, a rank missing."""


class PeerLostError(GroupError):
    """A rank was lost; the message names it, its host, what it was waited for in, and the step."""

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.rank = rank
        """The rank that is lost, as far as this one can tell."""


class DesyncError(GroupError):
    """Ranks that have to take each step together are at different ones."""


class StorageError(CabrankError):
    """The object store, or the disk, cannot be used."""

    exit_code = 5
    transient: ClassVar[bool] = False
    """Whether the same call may succeed a moment later; `store/retry.py` goes by it."""


class MissingBucketError(StorageError):
    """The bucket does not exist."""


class ObjectMissingError(StorageError):
    """The object does not exist."""


class AccessError(StorageError):
    """Credentials are absent, or do not allow the call."""


class ExpiredError(AccessError):
    """Credentials were valid and are no longer; the store forgets them when it raises this."""

    transient = True


class UnreachableError(StorageError):
    """The store did not answer, or with a failure, or with fewer bytes than it announced."""

    transient = True


class ThrottledError(UnreachableError):
    """The store asks for fewer requests."""
