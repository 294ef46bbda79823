"""The sinks that come with stagepipe: `npz`. A sink is called once an item, and its `close` at the run's end."""

from stagepipe.sinks.archive import npz

__all__ = ["npz"]
