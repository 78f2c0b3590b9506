"""cabrank: train PyTorch models on part files in S3 that do not fit in memory.

`from cabrank import ObjectStorageDataset` is the whole of the Python interface for reading data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cabrank.data.dataset import ObjectStorageDataset

__all__ = ["ObjectStorageDataset"]


def __getattr__(name: str) -> Any:
    # torch takes seconds to import: not before somebody asks for the class
    if name == "ObjectStorageDataset":
        from cabrank.data.dataset import ObjectStorageDataset

        return ObjectStorageDataset
    raise AttributeError(f"module 'cabrank' has no attribute {name!r}")
