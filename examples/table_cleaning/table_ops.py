"""The functions of table_cleaning.yaml."""

import pandas as pd

LOWEST, HIGHEST = -60, 60  # degrees Celsius that a sensor can measure


def to_types(table: pd.DataFrame) -> pd.DataFrame:
    """Strip names, and parse times and numbers; a missing number becomes NaN."""
    return table.assign(
        time=pd.to_datetime(table["time"]),
        sensor=table["sensor"].str.strip(),
        temperature=pd.to_numeric(table["temperature"], errors="coerce"),
    )


def to_celsius(table: pd.DataFrame) -> pd.DataFrame:
    """Convert all temperatures to degrees Celsius; values that no sensor can measure become NaN."""
    celsius = table["temperature"].where(table["unit"] == "C", (table["temperature"] - 32) / 1.8)
    return table.assign(temperature=celsius.where(celsius.between(LOWEST, HIGHEST))).drop(columns="unit")
