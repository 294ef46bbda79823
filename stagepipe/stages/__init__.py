"""The built-in stages. They run in worker processes.

batch         `Batch`: collates items; an order point
bucket        `Bucket`: brings items of similar length together; an order point
shuffle       `Shuffle`: permutes blocks of items; an order point
unbatch       `Unbatch`: yields the rows of a batch
filter        `Filter`: drops items
flat_map      `FlatMap`: yields the items of what a function returns
select_fields `Select`, `Rename`, `Drop`: which fields an item has
fetch         `Fetch`: turns dataset indices into samples
fetch_shard   `FetchShard`: reads the shards of an iterable dataset
order_point   `OrderPointStage`: the interface of order points
collate/      copies items into the arrays of a batch; used by `Batch`, `Fetch` and workers that send rows

Ready stages, each over a library that is imported where it is used. They are imported by their own paths:

image         `Decode`, `Resize`, `Normalize`, `EncodeJpeg`
audio         `Decode`, `Resample`
video         `DecodeClips`
text/         `Tokenize`; `Pack`, an order point
table/        `FromRows`, an order point; `ToRows`, `Apply`, `Convert`
model/        `Module`, `HuggingFacePipeline`
dedup         `MinHash`, `PerceptualHash`

item_length         the length of an item, for `Bucket`
optional_packages   their libraries, and what they read: files or bytes

Nothing here imports torch before a value needs it.
"""

from stagepipe.stages.batch import Batch
from stagepipe.stages.bucket import Bucket
from stagepipe.stages.collate import NotStackableError, Rows, make_rows, measure_row_bytes
from stagepipe.stages.fetch import Fetch
from stagepipe.stages.fetch_shard import FetchShard
from stagepipe.stages.filter import Filter
from stagepipe.stages.flat_map import FlatMap
from stagepipe.stages.order_point import (
    OrderPointStage,
    count_items_per_output,
    declares_order_point,
    require_order_point,
)
from stagepipe.stages.select_fields import Drop, Rename, Select
from stagepipe.stages.shuffle import Shuffle
from stagepipe.stages.unbatch import Unbatch

__all__ = [
    "Batch",
    "Bucket",
    "Drop",
    "Fetch",
    "FetchShard",
    "Filter",
    "FlatMap",
    "NotStackableError",
    "OrderPointStage",
    "Rename",
    "Rows",
    "Select",
    "Shuffle",
    "Unbatch",
    "count_items_per_output",
    "declares_order_point",
    "make_rows",
    "measure_row_bytes",
    "require_order_point",
]
