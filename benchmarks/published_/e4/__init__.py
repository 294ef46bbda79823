"""E4: one request for one array to another process, until the client holds it.

Of four shapes (float64), each with its making in the time, as published, and made beforehand ("ready"). The server
makes the array that the request's number is the seed of; a ready one is stamped with the number.
"""

from published_.e4.contestants import EXPERIMENT

__all__ = ["EXPERIMENT"]
