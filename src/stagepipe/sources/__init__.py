"""The sources that come with stagepipe: `files`, `dataset` and `numbers`. Run in the source's process.

A source is a class with `__len__` and `__getitem__`, which can be asked from any position; or with `__iter__`, a
stream; or a function that returns an iterable. A method `begin(epoch, seed)` is called before it is read, at each seek.
"""

from stagepipe.sources.counted import numbers
from stagepipe.sources.globbed import files
from stagepipe.sources.sampled import dataset

__all__ = ["dataset", "files", "numbers"]
