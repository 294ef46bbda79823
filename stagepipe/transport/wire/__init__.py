"""The wire format: what goes through the pipe of a hop, and the pipe itself. Knows nothing of shared memory.

packet           the layout of a packet, its checksum and its descriptors
fragments        an item that is too large for a packet and must use the pipe, in fragments
pipe             the packet pipe, wake events, and waits for them
"""

from stagepipe.transport.wire.fragments import FragmentAssembler, encode_body, is_fragment, split_into_fragments
from stagepipe.transport.wire.packet import (
    DESCRIPTOR_BYTES,
    INLINE_ALIGN_BYTES,
    INLINE_ARENA,
    MAX_ENTRY_BYTES,
    PACKET_BYTES,
    PICKLE_BUFFER,
    SHARED_BLOCK,
    TABLE_HEADER_BYTES,
    BufferDescriptor,
    Entry,
    PacketFlag,
    PacketHeader,
    PacketKind,
    check_entry_fits,
    descriptor_table_bytes,
    join_entries,
    overhead_bytes,
    pack,
    pack_descriptors,
    pack_entry,
    unpack,
    unpack_descriptors,
    write_sent_at,
    write_timestamps,
)
from stagepipe.transport.wire.pipe import PipeEnds, PipeWaiter, WakeEvent, make_byte_pipe, make_packet_pipe

__all__ = [
    "DESCRIPTOR_BYTES",
    "INLINE_ALIGN_BYTES",
    "INLINE_ARENA",
    "MAX_ENTRY_BYTES",
    "PACKET_BYTES",
    "PICKLE_BUFFER",
    "SHARED_BLOCK",
    "TABLE_HEADER_BYTES",
    "BufferDescriptor",
    "Entry",
    "FragmentAssembler",
    "PacketFlag",
    "PacketHeader",
    "PacketKind",
    "PipeEnds",
    "PipeWaiter",
    "WakeEvent",
    "check_entry_fits",
    "descriptor_table_bytes",
    "encode_body",
    "is_fragment",
    "join_entries",
    "make_byte_pipe",
    "make_packet_pipe",
    "overhead_bytes",
    "pack",
    "pack_descriptors",
    "pack_entry",
    "split_into_fragments",
    "unpack",
    "unpack_descriptors",
    "write_sent_at",
    "write_timestamps",
]
