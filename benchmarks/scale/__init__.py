"""How the cost of a hop grows: `python -m benchmarks.scale`."""
