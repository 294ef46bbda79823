"""The order of an epoch: indices, drawn from (seed, epoch) in the source's process.

epoch_order            `EpochOrder`: the type of all of them
shuffled_order         any order of the indices
block_shuffled_order   blocks of consecutive records, and within a few of them any order
sampler_order          the order that a sampler draws
batched_order          another order in lists of `batch_size` indices

The order of a mix is in `joined`: it depends on the parts.
"""

from stagepipe.sources.order.batched_order import BatchedOrder
from stagepipe.sources.order.block_shuffled_order import BlockShuffledOrder
from stagepipe.sources.order.epoch_order import EpochOrder
from stagepipe.sources.order.sampler_order import SamplerOrder
from stagepipe.sources.order.shuffled_order import ShuffledOrder

__all__ = ["BatchedOrder", "BlockShuffledOrder", "EpochOrder", "SamplerOrder", "ShuffledOrder"]
