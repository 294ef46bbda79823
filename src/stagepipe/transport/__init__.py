"""How items travel between processes: packet pipes, arenas, leases, the codec, order. Knows nothing of stages.

pipe        the hop's queue of packets, and waits
packet      what a packet looks like
arena       a process's shared memory, cut into blocks
lease       who still needs a block
arrays      NumPy, torch and PIL without their bytes
codec       an item into a pickle and buffers, and back
channel     sending and receiving, timed
reorder     order restored
"""

from stagepipe.transport.arena import Arena, make_arena
from stagepipe.transport.channel import Counts, Policy, Received, Receiver, Sender
from stagepipe.transport.lease import Lease, Memory
from stagepipe.transport.packet import PACKET_BYTES, Kind
from stagepipe.transport.pipe import Bell, PipeEnds, Waiter, make_byte_pipe, make_pipe, make_socket_pair
from stagepipe.transport.reorder import Leaf, Reorder

__all__ = [
    "PACKET_BYTES",
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
    "make_arena",
    "make_byte_pipe",
    "make_pipe",
    "make_socket_pair",
]
