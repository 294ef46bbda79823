"""Transfers items between processes, through pipes and shared memory. Knows nothing of stages.

wire    the packet format, and the pipe of a hop
rule    what goes in the packet, and what through shared memory
transports   the socket for other ways to move buffers
memory  the shared memory of a process, and the leases that keep its blocks in use
codec   an item as a pickle and buffers, and back
hop     the sending and the receiving end of a hop, and the order of items
"""

from stagepipe.transport.codec import EncodedBuffer, Encoder, decode, reduce_storage
from stagepipe.transport.hop import (
    ReceivedPacket,
    Receiver,
    ReorderBuffer,
    SendCounts,
    Sender,
    UnreadableItemError,
    make_receiver,
    make_sender,
)
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
from stagepipe.transport.rule import (
    ALWAYS_PIPE_THRESHOLD_BYTES,
    MAX_INLINE_BYTES,
    PIPE,
    SHARED_MEMORY,
    Placement,
    TransportRule,
    Way,
)
from stagepipe.transport.transports import (
    Transport,
    find_transport_target,
    list_transports,
    load_transport,
    open_transports,
    register_transport,
)
from stagepipe.transport.wire import (
    PacketKind,
    PipeEnds,
    PipeWaiter,
    WakeEvent,
    make_byte_pipe,
    make_packet_pipe,
)

__all__ = [
    "ALWAYS_PIPE_THRESHOLD_BYTES",
    "MAX_INLINE_BYTES",
    "MIN_PUNCH_BYTES",
    "PIPE",
    "SHARED_MEMORY",
    "Arena",
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
    "find_transport_target",
    "list_transports",
    "load_transport",
    "open_transports",
    "register_transport",
    "UnreadableItemError",
    "WakeEvent",
    "Way",
    "decode",
    "era_span_bytes",
    "extend_arena_fd",
    "make_arena_fd",
    "make_byte_pipe",
    "make_packet_pipe",
    "make_receiver",
    "make_sender",
    "punch_hole",
    "reduce_storage",
    "size_class_bytes",
]
