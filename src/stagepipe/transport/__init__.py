"""How items travel between processes: packet pipes, arenas, leases, the codec, order. Knows nothing of stages.

pipe        the hop's queue of packets, and waits
packet      what a packet looks like
large       what a packet's worth of pipe does not hold, when it is forced through it
arena       a process's shared memory, cut into blocks
lease       who still needs a block
stacks      many small arrays as one
arrays      NumPy without its bytes; tensors, images: torch's and PIL's; reducers: the table of them
codec       an item into a pickle and buffers, and back
policy      the rule of a hop
packer      what goes where: described, copied into a block, or inline; unpacker: back
sender      sending, timed
receiver    receiving, timed
reorder     order restored
"""

from stagepipe.transport.arena import PUNCHED_FROM, Arena, class_size, extend_arena, make_arena, punch, span_of
from stagepipe.transport.lease import Lease, Memory
from stagepipe.transport.packer import Counts
from stagepipe.transport.packet import PACKET_BYTES, Kind
from stagepipe.transport.pipe import Bell, PipeEnds, Waiter, make_byte_pipe, make_pipe, make_socket_pair
from stagepipe.transport.policy import FITS_BYTES, FORCED_PIPE, Policy, rule_word
from stagepipe.transport.receiver import Received, Receiver
from stagepipe.transport.reorder import Leaf, Reorder
from stagepipe.transport.sender import Sender

__all__ = [
    "FITS_BYTES",
    "FORCED_PIPE",
    "PACKET_BYTES",
    "PUNCHED_FROM",
    "Arena",
    "Bell",
    "Counts",
    "Kind",
    "Leaf",
    "Lease",
    "Memory",
    "PipeEnds",
    "Policy",
    "Received",
    "Receiver",
    "Reorder",
    "Sender",
    "Waiter",
    "class_size",
    "extend_arena",
    "make_arena",
    "make_byte_pipe",
    "make_pipe",
    "make_socket_pair",
    "punch",
    "rule_word",
    "span_of",
]
