"""E2: one big list of integers to another process, and its size curve."""

from published_.e2.contestants import EXPERIMENT

__all__ = ["EXPERIMENT"]
