"""`ParquetSink`: writes dict items as rows of Parquet shards. Encodes in workers; joins shards without decoding."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Literal

from stagepipe.core import import_extra
from stagepipe.sinks.parquet_footer import join_footers, read_footer, write_footer
from stagepipe.sinks.part_sink import PartPlace, PartSink

if TYPE_CHECKING:
    import pyarrow as pa


class ParquetSink(PartSink):
    """Write each item, a dict, as a row of `path/000000.parquet` ... In YAML it is `uses: stagepipe.sinks.parquet`.

    Arrays and tensors become lists, nested for each axis. Dicts become structs. Dataclasses are rows too. A row group
    is one part. Columns are dictionary-encoded, except floats of which few repeat.

    Args:
        path: see `PartSink`.
        options: the other arguments of `PartSink`.
        schema: the type of each column, such as `{x: list<float32>, label: int64, name: string}`, or a
            `pyarrow.Schema`. Without it, the first part decides: all later parts must have its columns, in types that
            fit.
        compression: `snappy`, `zstd`, `gzip`, `lz4`, `brotli` or `none`.

    Needs pyarrow: `pip install 'pyarrow>=15'`. Raises TypeError and ValueError, with the field and the row.
    """

    appends: ClassVar[bool] = True
    extension: ClassVar[str] = ".parquet"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        schema: Mapping[str, Any] | pa.Schema | None = None,
        compression: Literal["snappy", "zstd", "gzip", "lz4", "brotli", "none"] = "snappy",
        **options: Any,
    ) -> None:
        super().__init__(path, **options)
        import_extra("pyarrow", "parquet", "the sink `parquet`")
        from stagepipe.sinks.arrow_columns import errors_of, make_schema

        with errors_of("parquet"):
            self._schema = None if schema is None else make_schema(schema)
        self._compression = compression

    def warm_up(self) -> None:
        """See `PartSink`. The first table imports pandas where that is installed: 1.5 s of CPU."""
        import pyarrow.parquet

        pyarrow.table({"": [0]})

    def write_part(self, items: Sequence[Any], path: Path) -> None:
        """Write the items as one row group."""
        from stagepipe.sinks.arrow_columns import errors_of, make_table

        with errors_of("parquet"):
            table = make_table(items, self._schema)
        self._write_table(table, path)

    def _write_table(self, table: pa.Table, path: Path) -> None:
        import pyarrow.parquet as pq

        from stagepipe.sinks.parquet_dictionary import choose_dictionary_columns

        pq.write_table(
            table,
            path,
            compression=self._compression,
            row_group_size=max(table.num_rows, 1),
            use_dictionary=choose_dictionary_columns(table),
        )

    def prepare_part(self, path: Path, kept: dict[str, Any]) -> None:
        """Give a part the columns of the first one, or raise."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        from stagepipe.sinks.arrow_columns import errors_of, fit_table

        schema = pq.read_schema(path)
        if "schema" not in kept:
            kept["schema"] = base64.b64encode(schema.serialize()).decode()
            return
        expected = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(kept["schema"])))
        if not schema.equals(expected):
            with errors_of("parquet"):
                table = fit_table(pq.read_table(path), expected)
            self._write_table(table, path)

    def finish_shard(self, file: BinaryIO, parts: Sequence[PartPlace], kept: Mapping[str, Any]) -> None:
        """Write the common footer."""
        del kept
        end = file.tell()
        footers = [read_footer(file, part.offset + part.size) for part in parts]
        file.seek(end)
        write_footer(file, join_footers(footers, [part.offset for part in parts]))
