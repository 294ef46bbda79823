"""A module with a generator of its own, which a stage's module imports as a module."""

import random

rng = random.Random()


def draw() -> float:
    return rng.random()
