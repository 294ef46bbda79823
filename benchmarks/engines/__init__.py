"""Engines side by side: the local one, Ray Data written by hand, and `engine: ray`. `python -m benchmarks.engines`."""
