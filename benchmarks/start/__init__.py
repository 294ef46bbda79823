"""The parts of `benchmarks/start`."""
