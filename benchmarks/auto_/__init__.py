"""The pipelines of `benchmarks/auto.py`, and how one run of them is measured."""
