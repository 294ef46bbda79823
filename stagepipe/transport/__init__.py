"""Transfers items between processes, through pipes and shared memory. Does not know about stages.

rule          decides which parts of an item go in the packet, and which through shared memory
transports    the interface for other ways to move buffers
native        the functions that may have a C implementation
packet        the packet format, and fragments of an item that exceeds a packet
pipe          the packet pipe of a hop, wake events, and the waits for both
memory        the shared memory of a process, and the leases that keep its blocks in use
codec         encodes an item as a pickle and buffers, and decodes it
packing       puts the parts of an item where the rule places them
chunk         consecutive plain items in one message
sender        the sending end of a hop
receiver      the receiving end of a hop
reorder       restores the order of items at an order point
traced_ends   both ends of a hop in a traced run
"""

from stagepipe.transport.chunk import ArrayLayout, hold_arrays, measure_arrays, put_arrays, shift_key, take_arrays
from stagepipe.transport.codec import EncodedBuffer, Encoder, decode, reduce_storage
from stagepipe.transport.memory import (
    MIN_PUNCH_BYTES,
    Arena,
    Lease,
    LeaseExtent,
    SharedMemoryPool,
    era_span_bytes,
    extend_arena_fd,
    make_arena_fd,
    punch_hole,
    size_class_bytes,
)
from stagepipe.transport.packet import PacketKind
from stagepipe.transport.packing import SendCounts
from stagepipe.transport.pipe import PipeEnds, PipeWaiter, WakeEvent, make_byte_pipe, make_packet_pipe
from stagepipe.transport.receiver import ReceivedPacket, Receiver, UnreadableItemError
from stagepipe.transport.reorder import ReorderBuffer
from stagepipe.transport.rule import (
    ALWAYS_PIPE_THRESHOLD_BYTES,
    MAX_INLINE_BYTES,
    PIPE,
    SHARED_MEMORY,
    Placement,
    TransportRule,
    Way,
)
from stagepipe.transport.sender import Sender
from stagepipe.transport.traced_ends import make_receiver, make_sender
from stagepipe.transport.transports import (
    Transport,
    find_transport_target,
    list_transports,
    load_transport,
    open_transports,
    register_transport,
)

__all__ = [
    "ALWAYS_PIPE_THRESHOLD_BYTES",
    "MAX_INLINE_BYTES",
    "MIN_PUNCH_BYTES",
    "PIPE",
    "SHARED_MEMORY",
    "Arena",
    "ArrayLayout",
    "EncodedBuffer",
    "Encoder",
    "Lease",
    "LeaseExtent",
    "PacketKind",
    "PipeEnds",
    "PipeWaiter",
    "Placement",
    "ReceivedPacket",
    "Receiver",
    "ReorderBuffer",
    "SendCounts",
    "Sender",
    "SharedMemoryPool",
    "Transport",
    "TransportRule",
    "UnreadableItemError",
    "WakeEvent",
    "Way",
    "decode",
    "era_span_bytes",
    "extend_arena_fd",
    "find_transport_target",
    "hold_arrays",
    "list_transports",
    "load_transport",
    "make_arena_fd",
    "make_byte_pipe",
    "make_packet_pipe",
    "make_receiver",
    "make_sender",
    "measure_arrays",
    "open_transports",
    "punch_hole",
    "put_arrays",
    "reduce_storage",
    "register_transport",
    "shift_key",
    "size_class_bytes",
    "take_arrays",
]
