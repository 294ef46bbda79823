"""Copies items into the arrays of a batch. Runs in the process of the stage that collates.

columns   a batch while it is filled: a tree of columns with the structure of the first item
leaves    the leaves of that tree: one column per array, tensor, number or object
rows      consecutive samples stacked by field, on their way to a batch
"""

from stagepipe.stages.collate.columns import make_column
from stagepipe.stages.collate.leaves import BatchColumn
from stagepipe.stages.collate.rows import NotStackableError, Rows, make_rows, measure_row_bytes

__all__ = ["BatchColumn", "NotStackableError", "Rows", "make_column", "make_rows", "measure_row_bytes"]
