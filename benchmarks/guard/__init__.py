"""Whether the hop has become dearer than in an earlier commit: `python -m benchmarks.guard`."""
