"""`LanceSource`: the rows of a Lance dataset. Runs in the source's process and in its workers."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stagepipe.core import SourceFiles, describe_files, import_extra
from stagepipe.sources.columns import check_columns
from stagepipe.sources.record_source import RecordSource, ShuffleMode, describe_rows, name_place
from stagepipe.sources.storage import Paths, find_stores
from stagepipe.sources.tables.arrow_rows import ArrowRows


class LanceSource(RecordSource):
    """Yield the rows of a Lance dataset, each a dict of Python values; a fixed-shape tensor is a NumPy array.

    In YAML it is `uses: stagepipe.sources.lance`. To read many rows with one call, write `batch: {size: 64}` on the
    source.

    Args:
        path: the folder of the dataset, such as `train.lance`, or a URL (`s3://...`), which Lance opens.
        columns: the columns to read. None: all.
        version: the version of the dataset. None: the newest when the source is built, in each process; name it if the
            dataset may change during a run.
        shuffle: use a different order in each epoch, drawn from the pipeline's seed and the epoch.
        storage_options: for URLs, the options of Lance's object store.

    Requires pylance: `pip install 'pylance>=0.20'`.

    >>> LanceSource("train.lance", columns=["text"])[0]  # doctest: +SKIP
    {'text': 'one'}

    Raises ValueError if there is no dataset, and for an unknown column, with those that there are.
    """

    def __init__(
        self,
        path: Paths,
        *,
        columns: Sequence[str] | None = None,
        version: int | None = None,
        shuffle: ShuffleMode = False,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(shuffle=shuffle)
        import_extra("lance", "lance", "the source `lance`")
        stores = find_stores(path, "lance")
        if len(stores) > 1:
            named = ", ".join(stores[:3])
            hint = "name one, or join a source of each with `stagepipe.sources.concat`"
            raise ValueError(f"lance: {path!r} are {len(stores)} datasets: {named}; {hint}")
        self._path = stores[0]
        self._columns = None if columns is None else list(columns)
        self._version = version
        self._storage_options = None if storage_options is None else dict(storage_options)

    @functools.cached_property
    def _count(self) -> int:
        return int(self._dataset.count_rows())

    def __len__(self) -> int:
        return self._count

    def describe_files(self) -> SourceFiles:
        """Return the version of the dataset in place of a size: a new version may order the rows in another way."""
        return describe_files([Path(self._path).name], [int(self._dataset.version)], [""])

    def read_records(self, indices: Sequence[int]) -> list[Any]:
        """Return the rows of several indices, with one read."""
        dataset = self._dataset
        try:
            rows = ArrowRows(dataset.take(list(indices), columns=self._columns), arrays_of_lists=False)
            return [rows[number] for number in range(len(indices))]
        except Exception as error:
            raise name_place(error, f"lance: {self._path}: {describe_rows(indices)}") from error

    @functools.cached_property
    def _dataset(self) -> Any:
        lance = import_extra("lance", "lance", "the source `lance`")
        try:
            dataset = lance.dataset(self._path, version=self._version, storage_options=self._storage_options)
        except (ValueError, OSError) as error:
            raise ValueError(f"lance: {self._path}: {error}; give the folder of a Lance dataset") from error
        check_columns(self._columns or (), dataset.schema.names, f"lance: {self._path}")
        return dataset
