"""The built-in sinks. They run where the pipeline's output arrives.

npz_sink      `NpzSink`, in YAML `stagepipe.sinks.npz`: one NumPy archive per item
flat_arrays   turns an item into the named arrays of an archive

A sink is called with each item; its `close`, if it has one, is called at the end of the run.

The lower-case name is an alias of the class, for `uses: stagepipe.sinks.npz`.
"""

from stagepipe.sinks.npz_sink import NpzSink

npz = NpzSink
"""Alias of `NpzSink`."""

__all__ = ["NpzSink", "npz"]
