"""Copies items into the arrays of a batch. Runs in the process of the stage that collates.

columns   a batch while it is filled: a tree of columns with the structure of the first item
leaves    the leaves of that tree: one column per array, tensor, number or object
"""

from stagepipe.stages.collate.columns import make_column
from stagepipe.stages.collate.leaves import BatchColumn

__all__ = ["BatchColumn", "make_column"]
