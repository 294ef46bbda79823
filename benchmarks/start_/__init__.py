"""The parts of `benchmarks/start.py`."""
