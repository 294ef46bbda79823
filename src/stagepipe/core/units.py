"""Sizes and durations as people write them, to whole bytes and nanoseconds and back. Pure; used in every process."""

from __future__ import annotations

import math
import re
from typing import Final

_BYTES: Final = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_NS: Final = {
    "ns": 1,
    "us": 10**3,
    "\N{MICRO SIGN}s": 10**3,
    "\N{GREEK SMALL LETTER MU}s": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "min": 60 * 10**9,
    "h": 3600 * 10**9,
}
_QUANTITY: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([^\W\d_]*)\s*")
_LONGEST: Final = 40  # characters; no honest quantity is longer, and int() of a long one is slow


def parse_bytes(value: object) -> int:
    """A size in bytes: a whole number, or a text with a unit (B, kB, MB, GB, TB, KiB, MiB, GiB, TiB; any case).

    >>> parse_bytes("4GiB"), parse_bytes("512 MB"), parse_bytes(4096)
    (4294967296, 512000000, 4096)

    Raises ValueError that says what was expected.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    return _parse(value, _BYTES, "a size such as 512MB or 4GiB")


def parse_duration_ns(value: object) -> int:
    """A duration in ns: a number is seconds; a text has a unit (ns, us, ms, s, m, min, h).

    >>> parse_duration_ns("20ms"), parse_duration_ns("5m"), parse_duration_ns(1.5)
    (20000000, 300000000000, 1500000000)

    Raises ValueError that says what was expected.
    """
    expected = "a duration such as 20ms, 30s or 5m (a bare number is seconds)"
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not (0 <= value < math.inf):
            message = f"expected {expected}, found {value}"
            raise ValueError(message)
        return round(value * 10**9)
    return _parse(value, _NS, expected)


def _parse(value: object, units: dict[str, int], expected: str) -> int:
    text = value if isinstance(value, str) else ""
    found = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        message = f"expected {expected}, found {_shown(value)}"
        raise ValueError(message)
    number, unit = found.groups()
    if unit.lower() not in units:
        what = f"{_shown(value)} has no unit" if not unit else f"{_shown(value)} has the unknown unit `{unit}`"
        message = f"{what}; expected {expected}"
        raise ValueError(message)
    scale = units[unit.lower()]
    return int(number) * scale if number.isdecimal() else round(float(number) * scale)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def format_bytes(size_bytes: float) -> str:
    """A size for people, in decimal units.

    >>> format_bytes(1_234_567), format_bytes(640), format_bytes(48_000)
    ('1.2 MB', '640 B', '48 kB')
    """
    return _scaled(size_bytes, (("B", 1), ("kB", 10**3), ("MB", 10**6), ("GB", 10**9), ("TB", 10**12)))


def format_ns(duration_ns: float) -> str:
    """A duration for people.

    >>> format_ns(46_000), format_ns(2_100_000), format_ns(90 * 10**9)
    ('46 us', '2.1 ms', '1.5 min')
    """
    steps = (("ns", 1), ("us", 10**3), ("ms", 10**6), ("s", 10**9), ("min", 60 * 10**9), ("h", 3600 * 10**9))
    return _scaled(duration_ns, steps)


def _scaled(value: float, steps: tuple[tuple[str, int], ...]) -> str:
    if value < 0:
        return f"-{_scaled(-value, steps)}"
    unit, scale = steps[0]
    for next_unit, next_scale in steps[1:]:
        # 999.6 would print as 1000: it is one of the next unit already.
        if round(value / scale) * scale < next_scale:
            break
        unit, scale = next_unit, next_scale
    amount = value / scale
    whole = scale == 1 or round(amount, 1) >= 10  # noqa: PLR2004 - two digits are enough
    return f"{amount:.0f} {unit}" if whole else f"{amount:.1f} {unit}"
