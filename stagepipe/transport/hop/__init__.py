"""The two ends of a hop: what a worker uses to send and receive items, and to restore their order.

sender          the sending end; times encoding, copying, sending and waiting
receiver        the receiving end; times the queue, receiving and decoding
plain_run       plain items, which are pickled together
run_block       runs that exceed a packet, in shared memory
run_arrays      the small arrays in them
open_run        takes the items of a received run one after the other
received        what a receiver hands to its process
outbox          small items that are held back, to write several of them as one packet
held_times      records the times of held items
late_writer     writes what is held back while the process is busy with something slow
packer          chooses for each buffer of an item: inline, copied to a block, or forwarded without a copy
carried_blocks  the blocks whose references go with a packet
unpacker        the buffers of a packet, as views that hold leases
reorder         the order of items, restored at an order point
traced_ends     both ends in a run that is traced
"""

from stagepipe.transport.hop.packer import SendCounts
from stagepipe.transport.hop.received import ReceivedPacket, UnreadableItemError
from stagepipe.transport.hop.receiver import Receiver
from stagepipe.transport.hop.reorder import ReorderBuffer
from stagepipe.transport.hop.sender import Sender
from stagepipe.transport.hop.traced_ends import make_receiver, make_sender

__all__ = [
    "ReceivedPacket",
    "Receiver",
    "ReorderBuffer",
    "SendCounts",
    "Sender",
    "UnreadableItemError",
    "make_receiver",
    "make_sender",
]
