"""Builds the pipeline of table_cleaning.yaml in Python.

From the root of the repository:

    python scripts/make_table.py
    python examples/table_cleaning/build_table_cleaning.py
"""

import pandas as pd
from table_ops import to_celsius, to_types

from stagepipe import defer, from_dataset, sinks, sources
from stagepipe.stages import table

TABLE = "data/table"
OUT = "runs/table_cleaning"

functions = [to_types, to_celsius, pd.DataFrame.dropna, pd.DataFrame.drop_duplicates]
schema = {"time": "timestamp[s]", "sensor": "string", "temperature": "float64"}

builder = (
    from_dataset(defer(sources.csv, f"{TABLE}/measurements.csv"))
    .map(defer(table.FromRows, 2_000), name="tables")
    .map(defer(table.Apply, functions), name="clean", workers=2)
    .flat_map(defer(table.ToRows), name="rows", fuse=True)
    .sink(defer(sinks.parquet, OUT, schema=schema, overwrite=True))
    .with_options(name="table_cleaning")
)

if __name__ == "__main__":
    builder.run().show()
