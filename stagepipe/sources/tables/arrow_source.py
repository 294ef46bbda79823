"""`ArrowSource`: the rows of Arrow IPC files. Runs in the source's process and in the workers of `dataset`."""

from __future__ import annotations

from typing import Any

from stagepipe.sources.storage import StoredFile
from stagepipe.sources.tables.arrow_groups import ArrowGroupSource


class ArrowSource(ArrowGroupSource):
    """Yield a dict for each row of Arrow IPC files, in the order of the files and rows.

    In YAML it is `uses: stagepipe.sources.arrow`; needs pyarrow (`pip install 'pyarrow>=15'`).

    Files of the IPC file format (also called Feather) and of the stream format, which Hugging Face's datasets writes.
    A local file is mapped: a row of an uncompressed one is read without its batch. Values are Python's; a list of
    numbers is a NumPy array.

    Args:
        path: a path or pattern, or several: `"data/*.arrow"`. A URL (`s3://...`) is opened by fsspec; a file of the
            stream format is then read whole.
        columns: the columns to read. None: all.
        shuffle: use a different order in each epoch, drawn from the pipeline's seed and the epoch. `"blocks"` shuffles
            the record batches, and the rows of four of them: quicker for compressed files and URLs.
        storage_options: for URLs, the options of fsspec's file system, such as `{anon: true}`.

    >>> ArrowSource("rows.arrow", columns=["label"])[0]  # doctest: +SKIP
    {'label': 1}

    Raises ValueError if no file matches, and for a column that does not exist; UsageError without pyarrow.
    """

    index_kind = "arrow"
    reads_single_rows = True

    def open_content(self, file: StoredFile) -> Any:
        """Open a file: a reader of its batches, or for the stream format its batches."""
        import pyarrow as pa

        def open_again() -> Any:
            return pa.memory_map(file.path) if file.file_system is None else pa.PythonFile(file.open(), mode="r")

        with open_again() as content:
            is_file_format = content.read(6) == b"ARROW1"
        if is_file_format:
            return pa.ipc.open_file(open_again())
        return pa.ipc.open_stream(open_again()).read_all()

    def get_column_names(self, content: Any) -> list[str]:
        """Return the names of the columns."""
        return list(content.schema.names)

    def count_rows(self, content: Any) -> list[int]:
        """Return the number of rows of each record batch."""
        import pyarrow as pa

        if isinstance(content, pa.Table):
            return [batch.num_rows for batch in content.to_batches()]
        return [content.get_batch(number).num_rows for number in range(content.num_record_batches)]

    def read_group(self, content: Any, group: int, columns: list[str] | None) -> Any:
        """Read a record batch."""
        import pyarrow as pa

        is_stream = isinstance(content, pa.Table)
        batch = content.to_batches()[group] if is_stream else content.get_batch(group)
        table = pa.Table.from_batches([batch])
        return table if columns is None else table.select(columns)
