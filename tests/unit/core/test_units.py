"""Sizes and durations, parsed and formatted."""

import pytest

from stagepipe.core import format_bytes, format_ns, format_percent, format_rate, parse_bytes, parse_duration_ns


@pytest.mark.parametrize(
    "text,value",
    [("4GiB", 4 << 30), ("512MB", 512_000_000), ("1.5 KiB", 1536), ("0b", 0), (4096, 4096), ("64kib", 65536)],
)
def test_sizes(text, value):
    assert parse_bytes(text) == value


@pytest.mark.parametrize(
    "text,value",
    [
        ("30s", 30 * 10**9),
        ("20ms", 20_000_000),
        ("5m", 300 * 10**9),
        ("1h", 3600 * 10**9),
        (2, 2 * 10**9),
        (0.5, 5 * 10**8),
        *(("7us", 7000), ("7\N{MICRO SIGN}s", 7000), ("3 min", 180 * 10**9), ("9ns", 9)),
    ],
)
def test_durations(text, value):
    assert parse_duration_ns(text) == value


@pytest.mark.parametrize(
    "wrong", ["", "4", "4 gigs", "-1MB", "GiB", True, None, [], -1, 1.5, "1e3MB", "9" * 5000 + "MB"]
)
def test_an_invalid_size_is_rejected_with_an_example(wrong):
    with pytest.raises(ValueError, match="4GiB"):
        parse_bytes(wrong)


@pytest.mark.parametrize("wrong", ["", "4", "30 sec", "-1s", True, None, [], -1, float("nan"), float("inf")])
def test_an_invalid_duration_is_rejected_with_an_example(wrong):
    with pytest.raises(ValueError, match="30s"):
        parse_duration_ns(wrong)


def test_formatted_values_have_two_digits():
    durations = [0, 999, 1000, 46_000, 999_600, 2_100_000, 10**9, 59.99 * 10**9, 90 * 10**9, 7200 * 10**9, -46_000]
    shown = ["0 ns", "999 ns", "1.0 µs", "46 µs", "1.0 ms", "2.1 ms", "1.0 s", "1.0 min", "1.5 min", "2.0 h", "-46 µs"]
    assert [format_ns(duration) for duration in durations] == shown
    assert [format_bytes(size) for size in (1_234_567, 640, 48_000, 999_999)] == ["1.2 MB", "640 B", "48 kB", "1.0 MB"]


def test_rates_and_shares():
    assert [format_rate(per_s) for per_s in (0, 9.96, 99.94, 100, 12_345.6)] == ["0.0", "10.0", "99.9", "100", "12,346"]
    assert [format_percent(share) for share in (0, 0.004, 0.256, 1.5)] == ["0 %", "0 %", "26 %", "150 %"]
