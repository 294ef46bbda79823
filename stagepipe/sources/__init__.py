"""The built-in sources. They run in the source's process.

files_source     `FilesSource`, in YAML `stagepipe.sources.files`: the files that match a pattern
dataset_source   `DatasetSource`, in YAML `stagepipe.sources.dataset`: a map-style or iterable dataset
numbers_source   `NumbersSource`, in YAML `stagepipe.sources.numbers`: whole numbers
batched_order    the order of an epoch in lists of `batch_size` indices
shuffled_order   the order of an epoch, drawn from the seed
sampler_order    the order of an epoch, drawn by a sampler

A source is a class with `__len__` and `__getitem__`, which can start at any position; or a class with `__iter__`, a
stream; or a function that returns an iterable. If it has a method `begin(epoch, seed)`, that is called before the first
item and after each seek.

The lower-case names are aliases of the classes, for `uses: stagepipe.sources.files`.
"""

from stagepipe.sources.dataset_source import DatasetSource
from stagepipe.sources.files_source import FilesSource
from stagepipe.sources.numbers_source import NumbersSource

dataset = DatasetSource
"""Alias of `DatasetSource`."""
files = FilesSource
"""Alias of `FilesSource`."""
numbers = NumbersSource
"""Alias of `NumbersSource`."""

__all__ = ["DatasetSource", "FilesSource", "NumbersSource", "dataset", "files", "numbers"]
