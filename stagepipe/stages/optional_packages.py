"""Optional packages of the ready-made stages, and their input: files or bytes."""

from __future__ import annotations

import importlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from stagepipe.core import TargetError, install_command

_BYTES_NDIM = 1
_SHOWN_BYTES = 8


def require(module: str, stage: str, *, extra: str = "", package: str = "") -> Any:
    """Import a module that `stage` needs. Errors name the extra or the package to install.

    >>> require("json", "image.Normalize", package="python").__name__
    'json'

    Raises TargetError if a package is not installed. An import that fails for another reason raises its own error.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        command = f"pip install {package}" if package else install_command(extra)
        raise TargetError(f"{stage} requires the package {missing}; run `{command}`") from error


def require_text(value: Any, stage: str) -> str:
    """Return `value` if it is a `str`. Raises TypeError otherwise."""
    if isinstance(value, str):
        return value
    raise TypeError(
        f"{stage}: expected a string, found {describe_value(value)}; name the field that holds it in `field`"
    )


def open_input(value: Any, stage: str) -> str | BytesIO:
    """Return a path as a `str`, or a file over encoded bytes: `bytes`, or a one-dimensional uint8 array.

    >>> open_input(b"RIFF", "audio.Decode").getvalue()
    b'RIFF'

    Raises TypeError for any other value, and FileNotFoundError if the file does not exist.
    """
    if isinstance(value, str | Path):
        if not Path(value).is_file():
            raise FileNotFoundError(f"{stage}: no file {value}")
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return BytesIO(value)
    if isinstance(value, np.ndarray) and value.ndim == _BYTES_NDIM and value.dtype == np.uint8:
        return BytesIO(value.tobytes())
    raise TypeError(
        f"{stage}: expected a path or the bytes of a file, found {describe_value(value)}; name the field that holds "
        "them in `field`"
    )


def read_input(value: Any, stage: str) -> bytes:
    """Return the bytes of a path or of encoded bytes."""
    source = open_input(value, stage)
    return Path(source).read_bytes() if isinstance(source, str) else source.getvalue()


def describe_value(value: Any) -> str:
    """Return a short description for errors: a path, the number of bytes, or type, shape and dtype.

    >>> describe_value(b"abc"), describe_value(np.zeros((2, 3))), describe_value(4)
    ("3 bytes that begin with b'abc'", 'an array of shape (2, 3) and dtype float64', 'an object of type int')
    """
    if isinstance(value, str | Path):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value):,} bytes that begin with {bytes(value[:_SHOWN_BYTES])!r}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        kind = "an array" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
        return f"{kind} of shape {tuple(value.shape)} and dtype {value.dtype}"
    return f"an object of type {type(value).__name__}"


def check_choice(value: str, choices: tuple[str, ...], name: str, stage: str) -> None:
    """Raise ValueError, with the choices, if `value` is not one of them."""
    if value not in choices:
        raise ValueError(f"{stage}: {name} is {value!r}; give one of {', '.join(choices)}")


def check_positive(value: int, name: str, stage: str) -> int:
    """Return `value` if it is a whole number of at least 1; otherwise raise ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{stage}: {name} is {value!r}; give a whole number of at least 1")
    return value


def parse_size(size: Any, stage: str) -> tuple[int, int]:
    """Return (height, width) in pixels; an int stands for both.

    >>> parse_size(224, "image.Resize"), parse_size([240, 320], "image.Resize")
    ((224, 224), (240, 320))
    """
    sides = (size, size) if isinstance(size, int) else tuple(size)
    if len(sides) != 2 or any(type(side) is not int or side < 1 for side in sides):  # noqa: PLR2004 - height and width
        raise ValueError(f"{stage}: size is {size!r}; give pixels: one number, or [height, width]")
    height, width = sides
    return height, width
