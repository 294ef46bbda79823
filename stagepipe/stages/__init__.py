"""The built-in stages. They run in worker processes.

batch         `Batch`: collates items; an order point. `Unbatch`: yields the rows of a batch
order_point   `OrderPointStage`: the interface of order points; `Shuffle`: permutes blocks of items; `Bucket`: groups
              items of similar length
item_stages   `Filter`: drops items; `FlatMap`: yields the items of a function's result; `Select`, `Rename`, `Drop`:
              change the fields of an item
fetch         `Fetch`: turns dataset indices into samples; `FetchShard`: reads the shards of an iterable dataset
collating     copies items into the arrays of a batch; used by `Batch` and `Fetch`
rows          consecutive samples stacked by field, on their way to a batch; used by workers that send rows

Ready-made stages. Each wraps a library, which is imported on first use. Import the stages by their own paths:

http          `Download`
image         `Decode`, `Resize`, `Normalize`, `EncodeJpeg`
audio         `Decode`, `Resample`
video         `DecodeClips`
text          `Tokenize`, `QualityFilter`; `Pack`, an order point
table         `FromRows`, an order point; `ToRows`, `Apply`, `Convert`
model         `Module`, `HuggingFacePipeline`
dedup         `MinHash`, `PerceptualHash`

optional_packages   imports of optional packages, and input from files or bytes
file_ends           detection of truncated files

No module here imports torch before a value needs it, except `model`.
"""

# In the order of `stagepipe list`.
# isort: off
from stagepipe.stages.batch import Batch
from stagepipe.stages.order_point import Bucket
from stagepipe.stages.collating import collate_as_torch as collate_as_torch
from stagepipe.stages.fetch import Fetch, FetchShard
from stagepipe.stages.item_stages import Filter, FlatMap, Drop, Rename, Select
from stagepipe.stages.order_point import (
    OrderPointStage,
    Shuffle,
    count_items_per_output,
    declares_order_point,
    require_order_point,
)
from stagepipe.stages.rows import NotStackableError, Rows, make_rows
from stagepipe.stages.batch import Unbatch
# isort: on

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
    "require_order_point",
]
