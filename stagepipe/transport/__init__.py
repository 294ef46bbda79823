"""Transfers items between processes, through pipes and shared memory. Knows nothing of stages.

wire    the packet format, the pipe of a hop, and the policy that chooses between pipe and shared memory
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
from stagepipe.transport.wire import (
    ALWAYS_PIPE_THRESHOLD_BYTES,
    MAX_INLINE_BYTES,
    PacketKind,
    PipeEnds,
    PipeWaiter,
    TransferPolicy,
    WakeEvent,
    encode_policy_word,
    make_byte_pipe,
    make_packet_pipe,
)

__all__ = [
    "ALWAYS_PIPE_THRESHOLD_BYTES",
    "MAX_INLINE_BYTES",
    "MIN_PUNCH_BYTES",
    "Arena",
    "EncodedBuffer",
    "Encoder",
    "Lease",
    "LeaseExtent",
    "PacketKind",
    "PipeEnds",
    "PipeWaiter",
    "ReceivedPacket",
    "Receiver",
    "ReorderBuffer",
    "SendCounts",
    "Sender",
    "SharedMemoryPool",
    "TransferPolicy",
    "UnreadableItemError",
    "WakeEvent",
    "decode",
    "encode_policy_word",
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
