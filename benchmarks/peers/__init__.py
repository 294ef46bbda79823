"""Whole jobs by stagepipe and by what its users would otherwise pick: `python -m benchmarks.peers`."""
