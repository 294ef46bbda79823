"""The identities of a source's items, for finding cached outputs again. It does no I/O except reading the files' dates.

The process that starts a run finds out how a source numbers its items, without running code of the user. The workers
then identify the item of a number in an epoch.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from stagepipe.core import build_target, get_class_path
from stagepipe.sources.dataset_source import DatasetIndices
from stagepipe.sources.files_source import FilesSource
from stagepipe.sources.order import BatchedOrder, EpochOrder
from stagepipe.sources.record_source import RecordSource

_PACKAGE: Final = "stagepipe.sources."
_DATASET: Final = frozenset({"dataset", "DatasetSource"})
_FILES: Final = frozenset({"files", "FilesSource"})
_NUMBERS: Final = frozenset({"numbers", "NumbersSource"})
_RECORDS: Final = frozenset(
    {
        *("arrow", "csv", "jsonl", "parquet", "text", "webdataset"),
        *("ArrowSource", "CsvSource", "JsonlSource", "ParquetSource", "TextSource", "WebdatasetSource"),
    }
)
_ORDER_ARGUMENTS: Final = ("dataset", "shuffle", "batch_size", "drop_last")
_DIGEST_BYTES: Final = 16


@dataclass(frozen=True, kw_only=True)
class ListedItems:
    """The items of a source whose order is known. `paths` are the files of the items, if each item is a file.

    `digest` covers all data that is not in a file of `paths`.
    """

    order: EpochOrder | BatchedOrder
    digest: str
    paths: tuple[str, ...] | None = None

    def begin(self, epoch: int, seed: int) -> None:
        """Draw the epoch's order."""
        if not isinstance(self.order, range):
            self.order.begin(epoch, seed)

    def identify(self, number: int) -> str:
        """Return the item's index, or its path with size and date. Raises OSError for a file that no longer exists."""
        index: Any = self.order[number % len(self.order)]  # to fill up ranks, the first items are repeated
        if self.paths is None:
            return repr(index)
        path = self.paths[index]
        status = os.stat(path)  # noqa: PTH116 - a Path would cost as much as the call
        return repr((path, status.st_size, status.st_mtime_ns))


def is_known_source(uses: Any, arguments: Mapping[Any, Any]) -> bool:
    """Whether `identify_items` supports a source, given as in a config.

    >>> is_known_source("stagepipe.sources.numbers", {"count": 3}), is_known_source("my_data.read", {})
    (True, False)
    """
    if isinstance(uses, list | tuple | range):
        return True
    name = _get_name(uses)
    if name in _DATASET:
        dataset = arguments.get("dataset")
        return arguments.get("shards") is None and (
            isinstance(dataset, Mapping) and _get_name(dataset.get("uses")) in _RECORDS
        )
    if name in _FILES:
        return "://" not in str(arguments.get("glob"))
    return name in _NUMBERS


def identify_items(uses: Any, arguments: Mapping[Any, Any]) -> ListedItems | None:
    """Return the identities of a source's items; None for an unknown source. Errors of the source are passed on."""
    if not is_known_source(uses, arguments):
        return None
    if isinstance(uses, list | tuple | range):
        return ListedItems(order=range(len(uses)), digest="")  # the config's description covers the values
    name = _get_name(uses)
    if name in _NUMBERS:
        return ListedItems(order=range(arguments["count"]), digest="")
    if name in _FILES:
        source = FilesSource(**{**arguments, "read": False})
        return ListedItems(order=source.order, digest="", paths=source.paths)
    indices = build_target(
        f"{_PACKAGE}dataset", {key: arguments[key] for key in _ORDER_ARGUMENTS if key in arguments}, None
    )
    dataset = indices.dataset if isinstance(indices, DatasetIndices) else None
    files = dataset.stored_files if isinstance(dataset, RecordSource) else None
    if files is None:
        return None
    described = repr([file.key for file in files])
    digest = hashlib.blake2b(described.encode(), digest_size=_DIGEST_BYTES).hexdigest()
    return ListedItems(order=indices.order, digest=digest)


def _get_name(uses: Any) -> str:
    """Return the name of a source of this package; empty for any other source."""
    if isinstance(uses, type):
        uses = get_class_path(uses)
    path = uses.replace(":", ".") if isinstance(uses, str) else ""
    return path.removeprefix(_PACKAGE) if path.startswith(_PACKAGE) else ""
