"""Make the table of an example: measurements of sensors as CSV, with typical mistakes.

    python scripts/make_table.py --count 20000 --out data/table --seed 17

Writes OUT/measurements.csv: some rows are repeated, some temperatures are missing, impossible or in Fahrenheit, and
some names have spaces around them. The same arguments make the same file.
"""

from __future__ import annotations

import argparse
import csv
import random
from collections.abc import Iterator
from pathlib import Path

SENSORS = ("attic", "cellar", "garden", "roof")
COLUMNS = ("time", "sensor", "temperature", "unit")
REPEATED, MISSING, IMPOSSIBLE, FAHRENHEIT, SPACES = 0.03, 0.05, 0.02, 0.25, 0.1


def make_rows(count: int, seed: int) -> Iterator[tuple[str, str, str, str]]:
    """Yield `count` rows in the order of `COLUMNS`."""
    draw = random.Random(seed)
    row = ("", "", "", "")
    for minute in range(count):
        if minute and draw.random() < REPEATED:
            yield row
            continue
        sensor = draw.choice(SENSORS)
        celsius = 999.0 if draw.random() < IMPOSSIBLE else draw.gauss(15, 8)
        unit = "F" if draw.random() < FAHRENHEIT else "C"
        shown = f"{celsius * 1.8 + 32 if unit == 'F' else celsius:.1f}"
        row = (
            f"2026-01-{1 + minute // 1440 % 28:02}T{minute // 60 % 24:02}:{minute % 60:02}",
            f" {sensor} " if draw.random() < SPACES else sensor,
            "" if draw.random() < MISSING else shown,
            unit,
        )
        yield row


def make(out: Path, count: int, seed: int) -> str:
    """Make the file; return one line about the result."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "measurements.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(make_rows(count, seed))
    return f"{path}: made {count} rows"


def main() -> None:
    """Read the command line and make the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--out", type=Path, default=Path("data/table"))
    parser.add_argument("--seed", type=int, default=17)
    arguments = parser.parse_args()
    print(make(arguments.out, arguments.count, arguments.seed))


if __name__ == "__main__":
    main()
