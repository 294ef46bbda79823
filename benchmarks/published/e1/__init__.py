"""E1: the MNIST table goes from a sender to a responder and back.

The sender pickles the table (and encodes the pickle in base64) and sends it. The responder receives and restores it,
pickles it (and encodes it) and sends it back. The sender receives and decodes it. Each part is timed separately.

table        the payload, and its check
channels     the mechanisms that carry bytes
protocol     the two sides of the round trip
masters      contestants whose responder is a separate program
others       the queue and MPI
mappings     mappings that are written again, and MPI's buffers
pipelines    stagepipe
contestants  the experiment
"""

from benchmarks.published.e1.contestants import EXPERIMENT

__all__ = ["EXPERIMENT"]
