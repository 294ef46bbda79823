"""Parses and formats sizes and durations: "4GiB" to bytes, "20ms" to ns, and back."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final

_BYTES_PER_UNIT: Final = {
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
_NS_PER_UNIT: Final = {
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
_QUANTITY_PATTERN: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([^\W\d_]*)\s*")
_MAX_QUANTITY_CHARS: Final = 40  # longer texts are no quantity, and int() of a long one is slow

_MIN_RATE_WITHOUT_DECIMALS: Final = 100


def parse_bytes(value: object) -> int:
    """A size in bytes, from a whole number or a text with a unit (B, kB, MB, GB, TB, KiB, MiB, GiB, TiB; any case).

    >>> parse_bytes("4GiB"), parse_bytes("512 MB"), parse_bytes(4096)
    (4294967296, 512000000, 4096)

    Raises ValueError, with the found value and the expected form.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    return _parse_quantity(value, _BYTES_PER_UNIT, "a size such as 512MB or 4GiB")


def parse_duration_ns(value: object) -> int:
    """A duration in ns, from a number of seconds or a text with a unit (ns, us, ms, s, m, min, h).

    >>> parse_duration_ns("20ms"), parse_duration_ns("5m"), parse_duration_ns(1.5)
    (20000000, 300000000000, 1500000000)

    Raises ValueError, with the found value and the expected form.
    """
    expected = "a duration such as 20ms, 30s or 5m (a bare number is seconds)"
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not (0 <= value < math.inf):
            message = f"expected {expected}, found {value}"
            raise ValueError(message)
        return round(value * 10**9)
    return _parse_quantity(value, _NS_PER_UNIT, expected)


def _parse_quantity(value: object, unit_scales: dict[str, int], expected: str) -> int:
    text = value if isinstance(value, str) else ""
    match = _QUANTITY_PATTERN.fullmatch(text) if len(text) <= _MAX_QUANTITY_CHARS else None
    if match is None:
        message = f"expected {expected}, found {_shorten_repr(value)}"
        raise ValueError(message)
    number, unit = match.groups()
    if unit.lower() not in unit_scales:
        mistake = f"the unknown unit `{unit}`" if unit else "no unit"
        message = f"{_shorten_repr(value)} has {mistake}; expected {expected}"
        raise ValueError(message)
    scale = unit_scales[unit.lower()]
    return int(number) * scale if number.isdecimal() else round(float(number) * scale)


def _shorten_repr(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_QUANTITY_CHARS else f"{text[:_MAX_QUANTITY_CHARS]}..."


def format_bytes(size_bytes: float) -> str:
    """A size as text with two digits, in decimal units.

    >>> format_bytes(1_234_567), format_bytes(640), format_bytes(48_000)
    ('1.2 MB', '640 B', '48 kB')
    """
    return _format_scaled(size_bytes, (("B", 1), ("kB", 10**3), ("MB", 10**6), ("GB", 10**9), ("TB", 10**12)))


def format_ns(duration_ns: float) -> str:
    """A duration as text with two digits.

    >>> format_ns(46_000), format_ns(2_100_000), format_ns(90 * 10**9)
    ('46 µs', '2.1 ms', '1.5 min')
    """
    units = (("ns", 1), ("µs", 10**3), ("ms", 10**6), ("s", 10**9), ("min", 60 * 10**9), ("h", 3600 * 10**9))
    return _format_scaled(duration_ns, units)


def format_rate(per_s: float) -> str:
    """A rate per second, without decimals from 100 on.

    >>> format_rate(1234.5), format_rate(45.67)
    ('1,234', '45.7')
    """
    return f"{per_s:,.{0 if per_s >= _MIN_RATE_WITHOUT_DECIMALS else 1}f}"


def format_percent(share: float) -> str:
    """A share of 1 in percent.

    >>> format_percent(0.256)
    '26 %'
    """
    return f"{share * 100:.0f} %"


def join_names(names: Sequence[str]) -> str:
    """Join names as `a, b and c`; "" for none.

    >>> join_names(["decode", "augment", "batch"])
    'decode, augment and batch'
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else ""


def _format_scaled(value: float, units: tuple[tuple[str, int], ...]) -> str:
    if value < 0:
        return f"-{_format_scaled(-value, units)}"
    unit, scale = units[0]
    for next_unit, next_scale in units[1:]:
        # 999.6 ns would be shown as 1000 ns: show it as 1.0 µs.
        if round(value / scale) * scale < next_scale:
            break
        unit, scale = next_unit, next_scale
    amount = value / scale
    is_whole = scale == 1 or round(amount, 1) >= 10  # noqa: PLR2004 - two digits are enough
    return f"{amount:.0f} {unit}" if is_whole else f"{amount:.1f} {unit}"
