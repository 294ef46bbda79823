"""`JsonlSink`: writes items as lines of JSON. Encodes in the sink's workers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec
import numpy as np

from stagepipe.sinks.part_sink import PartSink

_TEXT: Final = frozenset({str})
_LEAVES: Final = frozenset({str, int, float, bool, type(None), bytes, np.ndarray})
"""Types of values that hold no dict."""


class JsonlSink(PartSink):
    r"""Write each item as a line of JSON, to `path/000000.jsonl` ... In YAML it is `uses: stagepipe.sinks.jsonl`.

    Takes the arguments of `PartSink`. Arrays and tensors become lists, NumPy's numbers become numbers, `bytes` become
    base64. Dataclasses become objects. NaN and infinity become `NaN` and `Infinity`: JSON has no word for them, but
    Python's `json`, pandas, pyarrow and `stagepipe.sources.jsonl` read these.

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
        encoder = msgspec.json.Encoder(enc_hook=_to_plain)
        with path.open("wb") as file:
            for row, item in enumerate(items):
                try:
                    file.write(_encode(item, encoder))
                except (TypeError, ValueError, RecursionError) as error:
                    place = _find_field(item, encoder)
                    raise TypeError(f"jsonl: row {row} of the part{place}: {error}") from error
                file.write(b"\n")


def _encode(value: Any, encoder: msgspec.json.Encoder) -> bytes:
    line = encoder.encode(value)
    _require_distinct_keys(value)
    if b"null" not in line:  # which msgspec also writes for NaN
        return line
    plain = msgspec.to_builtins(value, enc_hook=_to_plain, str_keys=True)
    try:
        json.dumps(plain, allow_nan=False)
    except ValueError:  # it has NaN or infinity
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode()
    return line


def _require_distinct_keys(value: Any) -> None:
    """Raise ValueError for a dict with two keys of one text: readers would see the last one alone."""
    if isinstance(value, dict):
        if not _TEXT.issuperset(map(type, value)):
            texts = msgspec.to_builtins(dict.fromkeys(value), enc_hook=_to_plain, str_keys=True)
            if len(texts) < len(value):
                repeated = [repr(key) for key in value if type(key) is not str and str(key) in value]
                raise ValueError(f"two keys of a dict have one text ({', '.join(repeated)}); give them other names")
        parts: Any = value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = value
    elif hasattr(value, "tolist"):
        return
    else:  # such as a dataclass
        parts = (msgspec.to_builtins(value, enc_hook=_to_plain),)
    if not _LEAVES.issuperset(map(type, parts)):
        for part in parts:
            if type(part) not in _LEAVES:
                _require_distinct_keys(part)


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
            _encode(value, encoder)
        except (TypeError, ValueError, RecursionError):
            return f", field `{name}`"
    return ""
