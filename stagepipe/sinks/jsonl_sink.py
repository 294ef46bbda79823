"""`JsonlSink`: writes items as lines of JSON. Encodes in the sink's workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from stagepipe.sinks.part_sink import PartSink


class JsonlSink(PartSink):
    r"""Write each item as a line of JSON, to `path/000000.jsonl` ... In YAML it is `uses: stagepipe.sinks.jsonl`.

    Takes the arguments of `PartSink`. Arrays and tensors become lists, NumPy's numbers become numbers, `bytes` become
    base64, NaN and infinity become null. Dataclasses become objects.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "part"
    >>> JsonlSink("out").write_part([{"x": 1}, {"x": 2}], path)
    >>> path.read_text()
    '{"x":1}\n{"x":2}\n'

    Raises TypeError, with the item and the field, for what JSON cannot hold.
    """

    appends: ClassVar[bool] = True
    extension: ClassVar[str] = ".jsonl"

    def write_part(self, items: Sequence[Any], path: Path) -> None:
        """Write a line for each item."""
        encoder = msgspec.json.Encoder(enc_hook=_to_plain)
        with path.open("wb") as file:
            for row, item in enumerate(items):
                try:
                    file.write(encoder.encode(item))
                except (TypeError, ValueError, RecursionError) as error:
                    place = _find_field(item, encoder)
                    raise TypeError(f"jsonl: row {row} of the part{place}: {error}") from error
                file.write(b"\n")


def _to_plain(value: Any) -> Any:
    """Return an array, a tensor or a number of NumPy as what JSON holds."""
    if hasattr(value, "detach"):  # a tensor, possibly with autograd history or on a GPU
        value = value.detach().cpu()
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"JSON cannot hold {type(value).__name__}; drop the field, or convert it before the sink")


def _find_field(item: Any, encoder: msgspec.json.Encoder) -> str:
    """Return the field of an item that JSON cannot hold, for a message."""
    for name, value in item.items() if isinstance(item, Mapping) else ():
        try:
            encoder.encode(value)
        except (TypeError, ValueError, RecursionError):
            return f", field `{name}`"
    return ""
