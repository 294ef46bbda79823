"""Runs the source and the stages on items, and handles their failures. In workers and inline.

stage         StageRunner: builds one stage, calls it, times it and seeds it; `when`
chain         StageChain: the fused stages of a process, called one after the other; retries
event_loop    StageLoop: runs the tasks of an `async def` stage; loaded only if there is one
source        SourceRunner: the source as the first stage of a chain; SourceReader reads it from any item on
grouping      the work of an order point: groups of leaves, and their lineage
fields        `field`, `as` and `into`: a function applied to fields of an item
cache         `cache`: keeps the outputs of a stage in files
seeding       seeds the generators of Python, NumPy and torch, and the own generators of a stage
lazy_seeding  delays the seeding of Python's and NumPy's generators until their first use
ranks         torchrun's environment variables, for a stage with a `group`
errors        StageError: an exception with its stage and item, and the text for it
"""

from stagepipe.runtime.execution.chain import Box, ChunkInHand, ItemHeader, StageChain
from stagepipe.runtime.execution.errors import StageError
from stagepipe.runtime.execution.grouping import OrderedGrouping, make_grouping
from stagepipe.runtime.execution.ranks import as_only_rank, reserve_port, set_rank
from stagepipe.runtime.execution.seeding import IsolatedGenerators, install_lazy_seeding
from stagepipe.runtime.execution.source import READ_ONCE_MESSAGE, SourceReader, SourceRunner
from stagepipe.runtime.execution.stage import Route, StageRunner, make_private_stage_region

__all__ = [
    "READ_ONCE_MESSAGE",
    "Box",
    "ChunkInHand",
    "IsolatedGenerators",
    "ItemHeader",
    "OrderedGrouping",
    "Route",
    "SourceReader",
    "SourceRunner",
    "StageChain",
    "StageError",
    "StageRunner",
    "as_only_rank",
    "install_lazy_seeding",
    "make_grouping",
    "make_private_stage_region",
    "reserve_port",
    "set_rank",
]
