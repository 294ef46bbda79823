"""The pipelines of `benchmarks/auto`, and how they are raced."""
