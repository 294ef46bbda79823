"""The pipelines of `benchmarks/auto.py`, and how they are raced."""
