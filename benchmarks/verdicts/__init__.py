"""Whether the verdict of a run is right, and its fix pays, on planted bottlenecks: `python -m benchmarks.verdicts`."""
