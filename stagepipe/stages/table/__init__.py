"""Stages for tables: pandas DataFrames and Arrow tables as items.

grouping     `FromRows`: dict rows to a table; an order point
stages       `ToRows`, `Apply` and `Convert`; they run in any worker
conversion   what is a table, and one kind to the other

Any function of a table is a stage as it is, without a field: `uses: pandas.DataFrame.drop_duplicates`.
"""

from stagepipe.stages.table.grouping import FromRows
from stagepipe.stages.table.stages import Apply, Convert, ToRows

__all__ = ["Apply", "Convert", "FromRows", "ToRows"]
