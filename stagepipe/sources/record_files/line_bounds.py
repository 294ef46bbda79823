"""Finds where the lines of a file begin. Runs where the index of a source is built; reads each file once."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stagepipe.sources.storage import Bounds, StoredFile

_READ_BYTES: Final = 16 << 20
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_OTHER_ENCODINGS: Final = (
    ("UTF-32", re.compile(rb"\xff\xfe\0\0|\0\0\xfe\xff|[^\0]\0\0\0|\0\0\0[^\0]")),
    ("UTF-16", re.compile(rb"\xff\xfe|\xfe\xff|[^\0]\0(?:[^\0]\0|\Z)|\0[^\0](?:\0[^\0]|\Z)")),
)
"""How files of other encodings begin: with their byte order mark, or with ASCII characters and zeros."""


def find_line_bounds(file: StoredFile, *, keep_blank: bool, quote: str | None = None) -> Bounds:
    """Return where the lines of a file begin, and where it ends.

    Args:
        file: is read from start to end. A byte order mark belongs to no line.
        keep_blank: without it, a line that holds only its line end belongs to the line before.
        quote: a line end between two of these characters does not end the line, as in CSV.

    Raises ValueError if a quoted text does not end, and for UTF-16 and UTF-32, whose line ends are no single bytes.
    """
    starts = [np.zeros(1, np.int64)]
    returns = [np.zeros(0, np.bool_)]
    position = quote_count = 0
    last_char = 0
    with file.open() as content:
        while data := content.read(_READ_BYTES):
            chars = np.frombuffer(data, np.uint8)
            if not position:
                require_utf8(data)
            if not position and data.startswith(_BYTE_ORDER_MARK):
                starts[0][0] = len(_BYTE_ORDER_MARK)
            ends = np.flatnonzero(chars == ord("\n"))
            if quote is not None:
                quotes = np.flatnonzero(chars == ord(quote))
                ends = ends[(quote_count + np.searchsorted(quotes, ends)) % 2 == 0]
                quote_count += len(quotes)
            starts.append(ends + (position + 1))
            returns.append(_find_carriage_returns(chars, ends, last_char))
            last_char = data[-1]
            position += len(data)
    if quote_count % 2:
        raise ValueError(f"a quoted text does not end: the file has an odd number of {quote} characters")
    bounds = np.concatenate(starts)
    if not keep_blank:
        bounds = _without_blank_lines(bounds, np.concatenate(returns))
    return bounds if bounds[-1] >= position else np.append(bounds, position)


def require_utf8(data: bytes) -> None:
    """Raise ValueError if a file that begins with `data` is in UTF-16 or UTF-32: it would be read in part."""
    for encoding, beginning in _OTHER_ENCODINGS:
        if beginning.match(data[:4]):
            hint = f"convert the file to UTF-8: `iconv -f {encoding} -t UTF-8`"
            raise ValueError(f"it is in {encoding}, not in UTF-8; {hint}")


def _find_carriage_returns(chars: NDArray[np.uint8], ends: NDArray[np.int64], last_char: int) -> NDArray[np.bool_]:
    """Return which line ends have a carriage return. `last_char` is the one before `chars`."""
    has_return: NDArray[np.bool_] = chars[ends - 1] == ord("\r")
    if len(ends) and ends[0] == 0:
        has_return[0] = last_char == ord("\r")
    return has_return


def _without_blank_lines(bounds: Bounds, has_return: NDArray[np.bool_]) -> Bounds:
    """Leave out where lines begin that hold only their line end."""
    is_blank = np.diff(bounds) == 1 + has_return
    return np.append(bounds[:-1][~is_blank], bounds[-1])
