"""Builds the pipeline of table_cleaning.yaml in Python.

From the root of the repository:

    python scripts/make_table.py
    python configs/build_table_cleaning.py
"""

from functools import partial

import pandas as pd
from table_ops import ParquetParts, read_rows, to_celsius, to_types

from stagepipe import defer, from_source
from stagepipe.stages import table

TABLE = "data/table"
OUT = "runs/table_cleaning"

functions = [to_types, to_celsius, pd.DataFrame.dropna, pd.DataFrame.drop_duplicates]

builder = (
    from_source(partial(read_rows, path=f"{TABLE}/measurements.csv"))
    .map(defer(table.FromRows, 2_000), name="parts")
    .map(defer(table.Apply, functions), name="clean", workers=2)
    .sink(defer(ParquetParts, OUT))
    .with_options(name="table_cleaning")
)

if __name__ == "__main__":
    builder.run().show()
