"""Detects files of audio or video that end before their own structure says.

Decoders take the end of the file for the end of the recording: of half a WAV file they return half of the samples,
without an error. Most containers store their length in their first bytes, and an Ogg stream marks its last page.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

_UNKNOWN_RIFF_BYTES: Final = 0x7FFF_E000
"""A WAV written to a pipe has this length or a larger one, because SoX and FFmpeg do not know the length in advance."""
_OGG_PAGE_BYTES: Final = 65_307
"""The maximum size of a page: 27 bytes of header, 255 lengths, and 255 times 255 bytes."""
_OGG_HEADER_BYTES: Final = 27
_OGG_END_OF_STREAM: Final = 4
_XING: Final = re.compile(rb"(?:Xing|Info)\0\0\0([\x02\x03\x06\x07\x0a\x0b\x0e\x0f])")
_MP3_BEGINS: Final = re.compile(rb"ID3|\xff[\xe0-\xff]")
_XING_REACH_BYTES: Final = 4096
_XING_TOLERANCE: Final = 100
"""An MP3 is truncated if more than one byte in this many is missing, as in mpg123: some encoders count their tags."""
_W64_DATA: Final = b"data\xf3\xac\xd3\x11\x8c\xd1\x00\xc0\x4f\x8e\xdb\x8a"
_ISO_BOXES: Final = frozenset({b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"styp", b"moof", b"pnot"})


def describe_cut(source: str | io.BytesIO) -> str:
    """Describe the missing end of a file, a path or the bytes; "" if it is complete or the format has no length.

    Formats with a length: WAV, RF64, W64, AIFF, SVX, AU, CAF, NIST, Ogg, MP3 with a Xing header, MP4, MOV, Matroska,
    WebM, AVI. A WAV or WebM that was written to a pipe does not know its length.

    >>> wav = b"RIFF" + struct.pack("<I", 36 + 8) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 8000, 1, 8)
    >>> describe_cut(io.BytesIO(wav + b"data" + struct.pack("<I", 8) + bytes(4)))
    'it has 4 of the 8 bytes that its chunk `data` says'
    >>> describe_cut(io.BytesIO(wav + b"data" + struct.pack("<I", 8) + bytes(8)))
    ''
    """
    with Path(source).open("rb") if isinstance(source, str) else io.BytesIO(source.getvalue()) as file:
        length = file.seek(0, io.SEEK_END)
        file.seek(0)
        head = file.read(_XING_REACH_BYTES)
        for matches, describe in _FORMATS:
            if matches(head):
                try:
                    return describe(file, length)
                except (struct.error, LookupError, ValueError):  # not the apparent format: the decoder raises the error
                    return ""
    return ""


def _describe(what: str, present: int, declared: int) -> str:
    missing = f"it has {max(present, 0):,} of the {declared:,} bytes that {what} says"
    return missing if present < declared else ""


def _read(file: BinaryIO, start: int, layout: str) -> tuple[int, ...]:
    file.seek(start)
    return struct.unpack(layout, file.read(struct.calcsize(layout)))


def _iter_chunks(file: BinaryIO, start: int, length: int, order: str) -> Iterator[tuple[bytes, int, int]]:
    """Yield the id, the start and the declared size of each chunk of a RIFF or AIFF file."""
    while start + 8 <= length:
        file.seek(start)
        name, size = struct.unpack(f"{order}4sI", file.read(8))
        yield name, start + 8, size
        start += 8 + size + size % 2


def _check_riff(file: BinaryIO, length: int) -> str:
    if file.seek(8) and file.read(4) == b"AVI ":
        for _, start, size in _iter_chunks(file, 0, length, "<"):
            if cut := _describe("its chunk `RIFF`", length - start, size):
                return cut
        return ""
    file.seek(0)
    order = ">" if file.read(4) == b"RIFX" else "<"
    long_size = None
    for name, start, size in _iter_chunks(file, 12, length, order):
        if name == b"ds64":  # of RF64
            long_size = _read(file, start + 8, "<Q")[0]
        if name == b"data":
            return _check_wav_data(file, start, length, size if long_size is None else long_size)
    return ""


def _check_wav_data(file: BinaryIO, start: int, length: int, size: int) -> str:
    file.seek(start)
    if size == 0 and start < length and not file.read(4).isalnum():  # another chunk would have a name
        return f"its header says 0 bytes of samples, and {length - start:,} follow: its writer was stopped"
    is_unknown = size >= _UNKNOWN_RIFF_BYTES and length < _UNKNOWN_RIFF_BYTES
    return "" if is_unknown else _describe("its chunk `data`", length - start, size)


def _check_w64(file: BinaryIO, length: int) -> str:
    start = 40
    while start + 24 <= length:
        file.seek(start)
        name, size = struct.unpack("<16sQ", file.read(24))
        if name == _W64_DATA:
            return _describe("its chunk `data`", length - start - 24, size - 24)
        start += max(size + -size % 8, 24)
    return ""


def _check_aiff(file: BinaryIO, length: int) -> str:
    for name, start, size in _iter_chunks(file, 12, length, ">"):
        if name in {b"SSND", b"BODY"}:
            return _describe(f"its chunk `{name.decode()}`", length - start, size)
    return ""


def _check_au(file: BinaryIO, length: int) -> str:
    start, size = _read(file, 4, ">II")
    return "" if size == 0xFFFF_FFFF else _describe("its header", length - start, size)  # noqa: PLR2004 - not known


def _check_caf(file: BinaryIO, length: int) -> str:
    start = 8
    while start + 12 <= length:
        file.seek(start)
        name, size = struct.unpack(">4sq", file.read(12))
        if size < 0:  # the data continue to the end of the file
            return ""
        if cut := _describe(f"its chunk `{name.decode('latin-1')}`", length - start - 12, size):
            return cut
        start += 12 + size
    return ""


def _check_nist(file: BinaryIO, length: int) -> str:
    file.seek(0)
    header = file.read(1024)
    numbers = dict(re.findall(rb"(sample_count|sample_n_bytes|channel_count) -i (\d+)", header))
    size = int(numbers[b"sample_count"]) * int(numbers[b"sample_n_bytes"]) * int(numbers.get(b"channel_count", 1))
    return _describe("its header", length - int(header.split(maxsplit=2)[1]), size)


def _check_ogg(file: BinaryIO, length: int) -> str:
    begin = max(0, length - _OGG_PAGE_BYTES)
    file.seek(begin)
    tail = file.read()
    start = tail.rfind(b"OggS")
    page = tail[start:]
    lengths = page[_OGG_HEADER_BYTES : _OGG_HEADER_BYTES + page[26]] if len(page) >= _OGG_HEADER_BYTES else b""
    is_last = start >= 0 and len(page) > _OGG_HEADER_BYTES and bool(page[5] & _OGG_END_OF_STREAM)
    if is_last and len(page) >= _OGG_HEADER_BYTES + page[26] + sum(lengths):
        return ""
    return "its last page is cut, or does not end the stream"


def _check_mp3(file: BinaryIO, length: int) -> str:
    file.seek(0)
    head = file.read(10)
    start = 0
    if head.startswith(b"ID3"):
        start = 10 + sum((byte & 0x7F) << shift for byte, shift in zip(head[6:10], (21, 14, 7, 0), strict=True))
    file.seek(start)
    found = _XING.search(file.read(_XING_REACH_BYTES))
    if found is None:
        return ""
    position = start + found.end() + (4 if found[1][0] & 1 else 0)  # after the number of frames
    (size,) = _read(file, position, ">I")
    lacks = start + size - length
    return _describe("its Xing header", length - start, size) if lacks * _XING_TOLERANCE > size else ""


def _check_iso(file: BinaryIO, length: int) -> str:
    start, name = 0, b""
    while start + 8 <= length:
        file.seek(start)
        size, name = struct.unpack(">I4s", file.read(8))
        if size == 1:
            size = _read(file, start + 8, ">Q")[0]
        if size == 0:  # the box continues to the end of the file
            return ""
        if cut := _describe(f"its box `{name.decode('latin-1')}`", length - start, size):
            return cut
        start += max(size, 8)
    if start < length:
        return f"it ends {length - start} bytes into the head of a box"
    return "it ends before the data of its last fragment" if name == b"moof" else ""


def _check_matroska(file: BinaryIO, length: int) -> str:
    start = 0
    for name in (b"\x1aE\xdf\xa3", b"\x18S\x80g"):  # EBML, Segment
        file.seek(start)
        if file.read(4) != name:
            return ""
        first = file.read(1)[0]
        width = 9 - first.bit_length()
        size = int.from_bytes(bytes([first & ((1 << (8 - width)) - 1)]) + file.read(width - 1))
        if size == (1 << 7 * width) - 1:  # the size is unknown
            return ""
        start = file.tell() + size
        if cut := _describe("its segment", length - file.tell(), size):
            return cut
    return ""


def _begins(*words: bytes) -> Callable[[bytes], bool]:
    return lambda head: head.startswith(words)


_FORMATS: Final[tuple[tuple[Callable[[bytes], bool], Callable[[BinaryIO, int], str]], ...]] = (
    (_begins(b"RIFF", b"RIFX", b"RF64", b"BW64"), _check_riff),
    (_begins(b"riff\x2e\x91\xcf\x11"), _check_w64),
    (_begins(b"FORM"), _check_aiff),
    (_begins(b".snd"), _check_au),
    (_begins(b"caff"), _check_caf),
    (_begins(b"NIST_1A"), _check_nist),
    (_begins(b"OggS"), _check_ogg),
    (_begins(b"\x1aE\xdf\xa3"), _check_matroska),
    (lambda head: head[4:8] in _ISO_BOXES, _check_iso),
    (lambda head: bool(_MP3_BEGINS.match(head)), _check_mp3),
)


def check_whole(source: str | io.BytesIO, stage: str, described: str) -> None:
    """Raise ValueError if a file ends before its structure says. `described` is the file's name in the message."""
    if cut := describe_cut(source):
        raise ValueError(
            f"{stage}: {described} is cut: {cut}; fetch it again, or set `truncated: keep` to keep the rest"
        )
