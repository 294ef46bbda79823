"""E1: the table of MNIST goes from a master to a slave and back again.

Master: pickles it (and encodes that in base64), sends it. Slave: receives, restores, pickles (and encodes), sends it
back. Master: receives, decodes. All parts are timed apart.
"""

from published_.e1.contestants import EXPERIMENT

__all__ = ["EXPERIMENT"]
