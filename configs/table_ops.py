"""The source, the stages and the sink of table_cleaning.yaml."""

import csv
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

LOWEST, HIGHEST = -60, 60  # degrees Celsius that a sensor can measure


def read_rows(path: str) -> Iterator[dict[str, str]]:
    """The rows of a CSV file."""
    with Path(path).open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def to_types(table: pd.DataFrame) -> pd.DataFrame:
    """Names without spaces, times and numbers as such; a missing number is NaN."""
    return table.assign(
        time=pd.to_datetime(table["time"]),
        sensor=table["sensor"].str.strip(),
        temperature=pd.to_numeric(table["temperature"], errors="coerce"),
    )


def to_celsius(table: pd.DataFrame) -> pd.DataFrame:
    """All temperatures in degrees Celsius; those that no sensor can measure become NaN."""
    celsius = table["temperature"].where(table["unit"] == "C", (table["temperature"] - 32) / 1.8)
    return table.assign(temperature=celsius.where(celsius.between(LOWEST, HIGHEST))).drop(columns="unit")


class ParquetParts:
    """Write each table to `path/000000.parquet`, `path/000001.parquet` ..."""

    def __init__(self, path: str, start: int = 0) -> None:
        self.folder = Path(path)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.number = start  # `run --resume` passes the number of parts that are complete

    def __call__(self, table: pd.DataFrame) -> None:
        """Write one part: beside its place first, so that there is no half-written one."""
        partial = self.folder / f"{self.number:06}.partial"
        table.to_parquet(partial, index=False)
        partial.rename(partial.with_suffix(".parquet"))
        self.number += 1
