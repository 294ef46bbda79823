"""Copies items into the arrays of a batch. Runs in the process of the stage that collates.

columns   a batch while it is filled: a tree of columns with the structure of the first item
leaves    the leaves of that tree: one column per array, tensor, number or object
padding   columns whose rows differ in length, and are padded to one
rows      consecutive samples stacked by field, on their way to a batch
"""

from stagepipe.stages.collate.columns import make_column
from stagepipe.stages.collate.leaves import BatchColumn
from stagepipe.stages.collate.padding import PaddingRules, refuse_added_fields
from stagepipe.stages.collate.rows import NotStackableError, Rows, make_rows, measure_row_bytes

__all__ = [
    "BatchColumn",
    "NotStackableError",
    "PaddingRules",
    "Rows",
    "make_column",
    "make_rows",
    "measure_row_bytes",
    "refuse_added_fields",
]
