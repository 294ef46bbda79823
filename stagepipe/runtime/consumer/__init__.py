"""The caller's end of a run: it delivers items from the last hop. In the caller's process, on the iterating thread.

consumer         Consumer: yields the items of an epoch; enters seeks
traced_consumer  the same, in a run that is traced
hop_reader       receives packets into shared memory, and does its upkeep
delivery         the order and the position of one generation
position         the cursor of what was delivered
statistics       what was delivered when, and who waited for whom
"""

from stagepipe.runtime.consumer.consumer import Consumer, MemoryHandle
from stagepipe.runtime.consumer.statistics import DeliverySnapshot, DeliveryStatistics, read_deliveries
from stagepipe.runtime.consumer.traced_consumer import make_consumer

__all__ = ["Consumer", "DeliverySnapshot", "DeliveryStatistics", "MemoryHandle", "make_consumer", "read_deliveries"]
