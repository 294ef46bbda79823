"""E2: one large list of integers goes to another process, in several sizes.

numbers      the payload, and its check
mechanisms   the mechanisms, as the sender's and the receiver's call
sending      the two sides: a child that sends, and this process, which receives
pipelines    stagepipe
contestants  the experiment
"""

from benchmarks.published.e2.contestants import EXPERIMENT

__all__ = ["EXPERIMENT"]
