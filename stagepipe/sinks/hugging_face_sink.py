"""`HuggingFaceSink`: writes dict items as a dataset that `datasets.load_from_disk` reads. Encodes in workers.

The files are those of `Dataset.save_to_disk`: Arrow IPC streams, `state.json` and `dataset_info.json`. A stream is a
schema, record batches and an end, so the record batches of several parts make one stream:
https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Final

from stagepipe.core import import_extra
from stagepipe.sinks.part_sink import PartPlace, PartSink

if TYPE_CHECKING:
    import pyarrow as pa

_END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_INFO_NAME: Final = "dataset_info.json"
_STATE_NAME: Final = "state.json"
_FINAL_NAME_PATTERN: Final = re.compile(r"data-\d{5,}-of-\d{5,}\.arrow")
_DEFAULT_SHARD_BYTES: Final = "500MB"  # as `save_to_disk`


class HuggingFaceSink(PartSink):
    """Write each item, a dict, as a row of a Hugging Face dataset. In YAML it is `uses: stagepipe.sinks.huggingface`.

    `datasets.load_from_disk(path)` reads it.

    The shards are called `000000.arrow` ... and at the end of the job, when their number is known,
    `data-00000-of-00003.arrow` ..., as `Dataset.save_to_disk` calls them.

    Args:
        path: the folder, such as `out`, relative to the current directory; it is created if it is missing.
        schema: the type of each column, such as `{x: list<float32>, label: int64, name: string}`, or a
            `pyarrow.Schema`, such as `Features(...).arrow_schema`. Without it, the first part decides: all later parts
            must have its columns, in types that fit.
        shard_items, shard_bytes, overwrite, part_items, part_bytes: see `PartSink`. `shard_bytes` is 500 MB.

    Arrays, tensors, dicts and dataclasses are written as by `stagepipe.sinks.parquet`.

    Requires pyarrow: `pip install 'pyarrow>=15'`. Raises TypeError and ValueError, with the field and the row.
    """

    appends: ClassVar[bool] = True
    extension: ClassVar[str] = ".arrow"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        schema: Mapping[str, Any] | pa.Schema | None = None,
        shard_items: int | None = None,
        shard_bytes: int | str = _DEFAULT_SHARD_BYTES,
        overwrite: bool = False,
        part_items: int | None = None,
        part_bytes: int | str | None = None,
    ) -> None:
        super().__init__(
            path,
            shard_items=shard_items,
            shard_bytes=shard_bytes,
            overwrite=overwrite,
            part_items=part_items,
            part_bytes=part_bytes,
        )
        import_extra("pyarrow", "parquet", "the sink `huggingface`")
        from stagepipe.sinks.arrow_columns import errors_of, make_schema

        with errors_of("huggingface"):
            self._schema = None if schema is None else make_schema(schema)

    def write_part(self, items: Sequence[Any], path: Path) -> None:
        """Write the items as a stream of one record batch."""
        from stagepipe.sinks.arrow_columns import errors_of, make_table

        with errors_of("huggingface"):
            table = make_table(items, self._schema)
        _write_stream(table, path)

    def prepare_part(self, path: Path, kept: dict[str, Any]) -> None:
        """Give a part the columns of the first one, or raise. Leave the record batch alone in the file."""
        import pyarrow as pa

        from stagepipe.sinks.arrow_columns import errors_of, fit_table

        with path.open("rb") as file, pa.ipc.open_stream(file) as reader:
            schema = reader.schema
        if "schema" not in kept:
            kept["schema"] = base64.b64encode(schema.serialize()).decode()
        expected = _load_schema(kept)
        if not schema.equals(expected):
            with path.open("rb") as file, pa.ipc.open_stream(file) as reader, errors_of("huggingface"):
                table = fit_table(reader.read_all(), expected)
            _write_stream(table, path)
        with pa.OSFile(str(path)) as file:
            pa.ipc.read_message(file)  # the schema
            data = file.read()
        path.write_bytes(data[: -len(_END_OF_STREAM)])

    def begin_shard(self, file: BinaryIO, kept: Mapping[str, Any]) -> None:
        """Write the schema."""
        file.write(_load_schema(kept).serialize())

    def finish_shard(self, file: BinaryIO, parts: Sequence[PartPlace], kept: Mapping[str, Any]) -> None:
        """End the stream."""
        del parts, kept
        file.write(_END_OF_STREAM)

    def name_shard(self, number: int, count: int | None = None) -> str:
        """Return the name that `save_to_disk` gives a shard, once the number of shards is known."""
        return super().name_shard(number) if count is None else f"data-{number:05d}-of-{count:05d}{self.extension}"

    def owns(self, path: Path) -> bool:
        """Whether it is a shard with its final name or describes them."""
        return path.name in {_INFO_NAME, _STATE_NAME} or _FINAL_NAME_PATTERN.fullmatch(path.name) is not None

    def describe(self, shard_count: int, rows: int, kept: Mapping[str, Any]) -> Mapping[str, bytes]:
        """Return what `load_from_disk` reads first. It finds the features and the fingerprint that are null itself."""
        del rows, kept
        if not shard_count:
            return {}  # `datasets` cannot read a dataset without a schema
        info = {"citation": "", "description": "", "features": None, "homepage": "", "license": ""}
        state: dict[str, Any] = {
            "_data_files": [{"filename": self.name_shard(number, shard_count)} for number in range(shard_count)],
            "_fingerprint": None,
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": None,
            "_output_all_columns": False,
            "_split": None,
        }
        return {
            name: json.dumps(value, indent=2).encode() for name, value in ((_INFO_NAME, info), (_STATE_NAME, state))
        }


def _write_stream(table: pa.Table, path: Path) -> None:
    import pyarrow as pa

    with path.open("wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table.combine_chunks())


def _load_schema(kept: Mapping[str, Any]) -> pa.Schema:
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(kept["schema"])))
