"""`JsonlSink`: writes items as lines of JSON. Encodes in the sink's workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from stagepipe.sinks.part_sink import PartSink
from stagepipe.sinks.stored_values import encode_json, to_json_value


class JsonlSink(PartSink):
    r"""Write each item as a line of JSON, to `path/000000.jsonl` ... In YAML it is `uses: stagepipe.sinks.jsonl`.

    Takes the arguments of `PartSink`. Arrays and tensors become lists, with null for a masked value; NumPy's numbers
    become numbers, `bytes` base64, dates ISO text. Dataclasses and records of a structured array become objects. NaN
    and infinity become `NaN` and `Infinity`: JSON has no word for them, but Python's `json`, pandas, pyarrow and
    `stagepipe.sources.jsonl` read these.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "part"
    >>> JsonlSink("out").write_part([{"x": 1}, {"x": 2}], path)
    >>> path.read_text()
    '{"x":1}\n{"x":2}\n'

    Raises TypeError, with the item and the field, for what JSON cannot hold, such as two keys of one text (1 and "1").
    """

    appends: ClassVar[bool] = True
    extension: ClassVar[str] = ".jsonl"

    def write_part(self, items: Sequence[Any], path: Path) -> None:
        """Write a line for each item."""
        encoder = msgspec.json.Encoder(enc_hook=to_json_value)
        with path.open("wb") as file:
            for row, item in enumerate(items):
                try:
                    file.write(encode_json(item, encoder))
                except (TypeError, ValueError, RecursionError) as error:
                    place = _find_field(item, encoder)
                    raise TypeError(f"jsonl: row {row} of the part{place}: {error}") from error
                file.write(b"\n")


def _find_field(item: Any, encoder: msgspec.json.Encoder) -> str:
    """Return the field of an item that JSON cannot hold, for a message."""
    for name, value in item.items() if isinstance(item, Mapping) else ():
        try:
            encode_json(value, encoder)
        except (TypeError, ValueError, RecursionError):
            return f", field `{name}`"
    return ""
