"""Stages for text. `Pack` is an order point and runs in its own process, the others in any worker.

quality    `QualityFilter`: drops texts by the rules of datatrove
tokenize   `Tokenize`: text to token ids
pack       `Pack`: documents of any length to sequences of one length
"""

from stagepipe.stages.text.pack import Pack
from stagepipe.stages.text.quality import QualityFilter
from stagepipe.stages.text.tokenize import Tokenize

__all__ = ["Pack", "QualityFilter", "Tokenize"]
