"""`ParquetSource`: the rows of Parquet files. Runs in the source's process and in the workers of `dataset`."""

from __future__ import annotations

from typing import Any

from stagepipe.sources.storage import StoredFile
from stagepipe.sources.tables.arrow_groups import ArrowGroupSource


class ParquetSource(ArrowGroupSource):
    """Yield a dict for each row of Parquet files, in the order of the files and rows.

    In YAML it is `uses: stagepipe.sources.parquet`; needs pyarrow (`pip install 'pyarrow>=15'`).

    A Parquet file is read in row groups. Each worker keeps the row groups that it read last, up to 256 MiB. Values are
    Python's; a list of numbers is a NumPy array.

    Args:
        path: a path or pattern, or several: `"data/**/*.parquet"`. A URL (`s3://...`) is opened by fsspec.
        columns: the columns to read; the others are not decoded. None: all.
        shuffle: use a different order in each epoch, drawn from the pipeline's seed and the epoch. True: any order of
            the rows, quick only where a worker can keep all row groups. `"blocks"`: shuffles the row groups, and the
            rows of four of them, so that each row group is read once by a worker.
        storage_options: for URLs, the options of fsspec's file system, such as `{anon: true}`.

    >>> ParquetSource("rows.parquet", columns=["label"])[0]  # doctest: +SKIP
    {'label': 1}

    Raises ValueError if no file matches, and for a column that does not exist; UsageError without pyarrow.
    """

    index_kind = "parquet"

    def open_content(self, file: StoredFile) -> Any:
        """Open a file and read its footer."""
        import pyarrow.parquet as pq

        if file.file_system is None:
            return pq.ParquetFile(file.path, memory_map=True)
        return pq.ParquetFile(file.open(), pre_buffer=True)

    def get_column_names(self, content: Any) -> list[str]:
        """Return the names of the columns."""
        return list(content.schema_arrow.names)

    def count_rows(self, content: Any) -> list[int]:
        """Return the number of rows of each row group."""
        metadata = content.metadata
        return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]

    def read_group(self, content: Any, group: int, columns: list[str] | None) -> Any:
        """Read a row group. In one thread: the stage has workers."""
        return content.read_row_group(group, columns=columns, use_threads=False)
