"""The JSON of a report: written and read. Pure."""

from __future__ import annotations

import msgspec
import numpy as np

from stagepipe.core import UsageError
from stagepipe.report.model import SCHEMA, Report


class _SchemaHeader(msgspec.Struct):
    """The field that all versions of a report share."""

    schema: str = "none"


def to_json(report: Report) -> bytes:
    """Return the report as JSON: UTF-8, indented by two spaces, `schema` first.

    >>> from_json(to_json(report)) == report  # doctest: +SKIP
    True
    """
    plain = {"schema": report.schema, **msgspec.to_builtins(report, enc_hook=_to_builtin)}
    return msgspec.json.format(msgspec.json.encode(plain), indent=2) + b"\n"


def from_json(text: bytes | str) -> Report:
    """Read a report that `to_json` wrote. Unknown fields are ignored.

    Raises UsageError if the text is not JSON or has another schema, or if a field is missing or has the wrong type.
    """
    try:
        schema = msgspec.json.decode(text, type=_SchemaHeader).schema
        if schema != SCHEMA:
            message = (
                f"cannot read this report: its schema is {schema!r}, expected {SCHEMA!r}; "
                "use the stagepipe that wrote it"
            )
            raise UsageError(message)
        return msgspec.json.decode(text, type=Report)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # ValueError: text that is not UTF-8
        message = f"not a {SCHEMA} file: {error}; pass a file that `stagepipe run --report FILE.json` wrote"
        raise UsageError(message) from error


def _to_builtin(value: object) -> object:
    """Convert what msgspec cannot: NumPy scalars and arrays to Python values, anything else to text."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)
