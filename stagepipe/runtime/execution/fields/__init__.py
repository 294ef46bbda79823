"""`field`, `as` and `into`: a function applied to fields of an item, with values converted. In workers and inline.

adapter          FieldAdapter: the stage's target, wrapped
field_path       which values of an item a function takes, and where its result goes
conversion       between NumPy arrays, tensors and PIL images
ignored_arrays   finds torchvision transforms that would leave a NumPy array unchanged without an error
"""

from stagepipe.runtime.execution.fields.adapter import FieldAdapter
from stagepipe.runtime.execution.fields.ignored_arrays import find_array_ignoring_transform

__all__ = ["FieldAdapter", "find_array_ignoring_transform"]
