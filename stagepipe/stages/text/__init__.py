"""Stages for text. `Tokenize` runs in any worker; `Pack` is an order point and runs in its own process.

tokenize   `Tokenize`: text to token ids
pack       `Pack`: documents of any length to sequences of one length
"""

from stagepipe.stages.text.pack import Pack
from stagepipe.stages.text.tokenize import Tokenize

__all__ = ["Pack", "Tokenize"]
