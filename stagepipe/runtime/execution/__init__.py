"""What runs on an item: the source, the stages, and what happens when they fail. In workers and inline.

stage               StageRunner: builds one stage, calls it, times it and seeds it
stage_error         StageError: an exception with its stage and item; NoneResultError: a missing `return`
input_description   what a failing item was, for the text of its error
chain               StageChain: the fused stages of a process, called one after the other
traced_stage        StageRunner and StageChain of a run that is traced
grouping            what an order point does with `order: source`: groups of leaves, and their lineage
unordered_grouping  the same with `order: any`
routing             `when`: whether a stage runs on an item
retry               repeats a failed call with the same seeds and the same input
source              SourceRunner: the source as the first stage of a chain
source_reader       SourceReader: reads an indexed source or a stream from any item on
seeding             seeds the global generators of Python, NumPy and torch
lazy_seeding        lets those of Python and NumPy wait for their first use
callers_generators  keeps the caller's generators as they were, inline
own_generators      seeds the generators that a stage keeps for itself
reachable_objects   walks the objects that a stage can reach
cache/              `cache`: the outputs that a stage keeps in files
fields/             `field`, `as` and `into`: a function applied to fields of an item
"""

from stagepipe.runtime.execution.callers_generators import IsolatedGenerators
from stagepipe.runtime.execution.chain import Box, ItemHeader, StageChain
from stagepipe.runtime.execution.grouping import OrderedGrouping
from stagepipe.runtime.execution.routing import Route
from stagepipe.runtime.execution.seeding import install_lazy_seeding
from stagepipe.runtime.execution.source import SourceRunner
from stagepipe.runtime.execution.source_reader import READ_ONCE_MESSAGE, SourceReader
from stagepipe.runtime.execution.stage import StageRunner, make_private_stage_region
from stagepipe.runtime.execution.stage_error import StageError
from stagepipe.runtime.execution.traced_stage import make_chain, make_stage
from stagepipe.runtime.execution.unordered_grouping import make_grouping

__all__ = [
    "READ_ONCE_MESSAGE",
    "Box",
    "IsolatedGenerators",
    "ItemHeader",
    "OrderedGrouping",
    "Route",
    "SourceReader",
    "SourceRunner",
    "StageChain",
    "StageError",
    "StageRunner",
    "install_lazy_seeding",
    "make_chain",
    "make_grouping",
    "make_private_stage_region",
    "make_stage",
]
