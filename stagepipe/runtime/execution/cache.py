"""`cache`: keeps the outputs of a stage in files. A kept output is read; other outputs are computed and kept.

The name of an entry identifies the item, and the config, code and data (by the plan's fingerprint). Errors are never
kept.

A file is complete or absent. It is written to a temporary file and renamed, so a killed process leaves no partial
entry, and several runs may use one folder. The file holds the arrays, then a tree of plain values, then a trailer that
reveals a truncated file. The tree is encoded with msgpack, never pickled: a user who can write to a cache folder must
not be able to run code. Arrays are C-ordered and begin at multiples of 64 bytes, so that they can be used in place.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import mmap
import os
import struct
import tempfile
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import GeneratorType
from typing import Any, Final, NamedTuple, Self

import msgspec
import numpy as np

from stagepipe.core import SKIP, Key, get_used_torch, is_tensor
from stagepipe.plan import CachePlan
from stagepipe.runtime.execution.errors import UncachableResultError
from stagepipe.runtime.execution.stage import StageCall, StageRunner
from stagepipe.runtime.protocol import format_key

_DTYPE_KINDS: Final = "biufcSUmM"
_MAX_DEPTH: Final = 100
_MIN_PLAIN_INT: Final = -(2**63)
_MAX_PLAIN_INT: Final = 2**64 - 1

WriteBuffer = Callable[[memoryview], int]
"""Writes bytes and returns their offset."""

_Node = Any
"""A scalar is itself; any other value is a list whose first element names the kind."""


class UncachableOutputError(Exception):
    """An output has a value that cannot be kept. `path` leads to the value."""

    def __init__(self, path: str, reason: str) -> None:
        where = f"its field `{path}`" if path else "it"
        super().__init__(f"{where} {reason}")


def encode(value: Any, write: WriteBuffer, path: str = "", depth: int = 0) -> _Node:  # noqa: C901, PLR0911 - a case for each kind of value
    """Return the tree of a value, after passing its arrays to `write`. Raises UncachableOutputError."""
    kind = type(value)
    if value is None or kind in {bool, float, bytes}:
        return value
    if kind is str:
        return value if value.isascii() else _encode_text(value)
    if kind is int:
        return value if _MIN_PLAIN_INT <= value <= _MAX_PLAIN_INT else ["int", str(value)]
    if value is SKIP:
        return ["skip"]
    if depth > _MAX_DEPTH:
        raise UncachableOutputError(path, f"is nested more than {_MAX_DEPTH} levels deep")
    if kind in {list, tuple}:
        nodes = [encode(inner, write, f"{path}[{index}]", depth + 1) for index, inner in enumerate(value)]
        return ["list" if kind is list else "tuple", nodes]
    if kind is dict:
        keys = [encode(key, write, path, depth + 1) for key in value]
        nodes = [encode(inner, write, f"{path}.{key}".lstrip("."), depth + 1) for key, inner in value.items()]
        return ["dict", keys, nodes]
    if kind is complex:
        return ["complex", value.real, value.imag]
    if kind in {np.ndarray, np.memmap}:
        return _encode_array(value, write, path)
    if isinstance(value, np.generic) and value.dtype.kind in _DTYPE_KINDS:
        return ["number", value.dtype.str, value.tobytes()]
    if is_tensor(value):
        return _encode_tensor(value, write, path)
    raise UncachableOutputError(path, f"is of type {kind.__module__}.{kind.__qualname__}")


def _encode_text(text: str) -> _Node:
    try:
        text.encode()
    except UnicodeEncodeError:  # it has a surrogate, as in a file name that is not UTF-8
        return ["text", text.encode("utf-8", "surrogatepass")]
    return text


def _encode_array(array: np.ndarray[Any, Any], write: WriteBuffer, path: str) -> _Node:
    if array.dtype.kind not in _DTYPE_KINDS:
        raise UncachableOutputError(path, f"is an array of the dtype {array.dtype}")
    is_transposed = array.flags.f_contiguous and not array.flags.c_contiguous
    stored = np.ascontiguousarray(array.T if is_transposed else array)
    begin = write(stored.reshape(-1).view(np.uint8).data) if stored.nbytes else 0
    return ["array", array.dtype.str, list(array.shape), is_transposed, begin]


def _encode_tensor(tensor: Any, write: WriteBuffer, path: str) -> _Node:
    torch = get_used_torch()
    is_plain = torch is not None and type(tensor) is torch.Tensor and tensor.layout == torch.strided
    if torch is None or not is_plain or tensor.device.type != "cpu" or tensor.requires_grad or tensor.is_quantized:
        what = f"{type(tensor).__qualname__} on {getattr(tensor, 'device', 'an unknown device')}"
        raise UncachableOutputError(path, f"is a {what}; return a plain tensor on the CPU without gradients")
    stored = tensor.contiguous().reshape(-1).view(torch.uint8).numpy() if tensor.numel() else None
    begin = 0 if stored is None else write(stored.data)
    return ["tensor", str(tensor.dtype).removeprefix("torch."), list(tensor.shape), begin]


def decode(node: _Node, buffer: Any) -> Any:  # noqa: C901, PLR0911 - a case for each kind of value
    """Return the value of a tree. Arrays are views of `buffer`. Raises ValueError for a damaged tree."""
    if not isinstance(node, list):
        return node
    match node:
        case ["int", text]:
            return int(text)
        case ["text", data]:
            return data.decode("utf-8", "surrogatepass")
        case ["skip"]:
            return SKIP
        case ["list", nodes]:
            return [decode(inner, buffer) for inner in nodes]
        case ["tuple", nodes]:
            return tuple(decode(inner, buffer) for inner in nodes)
        case ["dict", keys, nodes]:
            values = (decode(inner, buffer) for inner in nodes)
            return dict(zip((decode(key, buffer) for key in keys), values, strict=True))
        case ["complex", real, imaginary]:
            return complex(real, imaginary)
        case ["number", dtype, data]:
            return np.frombuffer(data, np.dtype(dtype))[0] if data else np.zeros((), np.dtype(dtype))[()]
        case ["array", dtype, shape, is_transposed, begin]:
            return _decode_array(np.dtype(dtype), shape, begin, buffer, is_transposed=is_transposed)
        case ["tensor", dtype, shape, begin]:
            return _decode_tensor(dtype, shape, begin, buffer)
    message = "unknown kind of value"
    raise ValueError(message)


def _decode_array(dtype: np.dtype[Any], shape: list[int], begin: int, buffer: Any, *, is_transposed: bool) -> Any:
    count = math.prod(shape)
    if not count or not dtype.itemsize:
        return np.empty(shape, dtype)
    flat = np.frombuffer(buffer, dtype, count, begin)
    return flat.reshape(shape[::-1]).T if is_transposed else flat.reshape(shape)


def _decode_tensor(dtype: str, shape: list[int], begin: int, buffer: Any) -> Any:
    import torch

    torch_dtype = getattr(torch, dtype)
    count = math.prod(shape)
    if not isinstance(torch_dtype, torch.dtype) or not count:
        return torch.empty(shape, dtype=torch_dtype)
    return torch.frombuffer(buffer, dtype=torch_dtype, count=count, offset=begin).reshape(shape)


_MAGIC: Final = b"SPCACHE1"
_TRAILER: Final = struct.Struct("<QII8s")
"""Offset, length and CRC-32 of the tree, and the magic."""
_ALIGNMENT: Final = 64
_MIN_MAPPED_BYTES: Final = 1 << 16
"""Smaller files are read, because mapping them costs more than copying."""
_MAX_MAPPINGS: Final = 256
"""The mappings of a process. Each holds a descriptor, and a process may have 1,024 by default."""

_UNFINISHED: Final = "unfinished"
_MAX_UNFINISHED_S: Final = 24 * 3600.0
"""Older files were left by a killed process."""

_mappings: Final[weakref.WeakSet[mmap.mmap]] = weakref.WeakSet()
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder()
_log: Final = logging.getLogger("stagepipe")


class KeptOutput(NamedTuple):
    """The result of a stage for an item, or the parts that it yielded."""

    values: list[Any]
    is_parts: bool


class EntryFolder:
    """The entries of one stage. After the first entry that cannot be written, nothing more is kept."""

    def __init__(self, folder: Path, stage: str) -> None:
        """Create nothing yet: the folder is made for the first entry."""
        self._folder = folder
        self._stage = stage
        self.is_writable = True
        self._was_cleaned = False

    def read(self, name: str) -> KeptOutput | None:
        """Return an entry; None if it is missing or damaged."""
        try:
            buffer = _open_buffer(self._get_path(name))
        except (OSError, ValueError):
            return None
        try:
            tree_begin, tree_bytes, crc, magic = _TRAILER.unpack_from(buffer, len(buffer) - _TRAILER.size)
            tree = bytes(memoryview(buffer)[tree_begin : tree_begin + tree_bytes])
            if magic != _MAGIC or zlib.crc32(tree) != crc or tree_begin + tree_bytes + _TRAILER.size != len(buffer):
                return None
            is_parts, nodes = _decoder.decode(tree)
            return KeptOutput([decode(node, buffer) for node in nodes], is_parts=is_parts)
        except (ValueError, TypeError, AttributeError, struct.error, msgspec.DecodeError, RecursionError):
            return None

    def begin(self, name: str) -> EntryWriter:
        """Begin an entry. Raises OSError."""
        path = self._get_path(name)
        unfinished = self._folder / _UNFINISHED
        if not self._was_cleaned:
            self._was_cleaned = True
            unfinished.mkdir(parents=True, exist_ok=True)
            _remove_old_files(unfinished)
        path.parent.mkdir(parents=True, exist_ok=True)
        return EntryWriter(path, unfinished)

    @contextlib.contextmanager
    def stop_at_error(self) -> Iterator[None]:
        """Stop keeping outputs after an OSError in the block, and warn once."""
        try:
            yield
        except OSError as error:
            if self.is_writable:
                self.is_writable = False
                _log.warning(
                    "stage %s: cannot keep its outputs in %s (%s); the run continues without caching more",
                    self._stage,
                    self._folder,
                    error.strerror or error,
                )

    def _get_path(self, name: str) -> Path:
        return self._folder / name[:2] / name[2:]


class EntryWriter:
    """An entry that is being written. `add` each value, then `commit`; without `commit`, nothing is left."""

    def __init__(self, path: Path, unfinished: Path) -> None:
        fd, name = tempfile.mkstemp(dir=unfinished)
        self._file = os.fdopen(fd, "wb")
        self._temporary = Path(name)
        self._path = path
        self._offset = 0
        self._nodes: list[Any] = []

    def add(self, value: Any) -> None:
        """Write a value: the result, or the next part. Raises OSError and UncachableOutputError."""
        self._nodes.append(encode(value, self._write))

    def commit(self, *, is_parts: bool) -> None:
        """Move the complete entry to its place. Raises OSError."""
        tree = _encoder.encode([is_parts, self._nodes])
        self._file.write(tree)
        self._file.write(_TRAILER.pack(self._offset, len(tree), zlib.crc32(tree), _MAGIC))
        self._file.close()
        self._temporary.replace(self._path)

    def _write(self, data: memoryview) -> int:
        padding = -self._offset % _ALIGNMENT
        self._file.write(b"\0" * padding)
        begin = self._offset + padding
        self._file.write(data)
        self._offset = begin + data.nbytes
        return begin

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._temporary.unlink(missing_ok=True)


def _open_buffer(path: Path) -> Any:
    """Return a file's bytes, writable without changing the file. Raises OSError, and ValueError if it is too short."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        if size < _TRAILER.size:
            message = "too short"
            raise ValueError(message)
        if size >= _MIN_MAPPED_BYTES and len(_mappings) < _MAX_MAPPINGS:
            mapping = mmap.mmap(fd, size, access=mmap.ACCESS_COPY)
            _mappings.add(mapping)
            return mapping
        with os.fdopen(fd, "rb", buffering=0, closefd=False) as file:
            return bytearray(file.read())
    finally:
        os.close(fd)


def _remove_old_files(folder: Path) -> None:
    oldest_s = time.time() - _MAX_UNFINISHED_S
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another process has removed it
            if path.stat().st_mtime < oldest_s:
                path.unlink()


_NAME_BYTES: Final = 20
_PLAIN_INDEX_TYPES: Final = (int, str)


_identities_lock: Final = threading.Lock()
"""The threads of a stage share the identities of the items."""


class StageCache:
    """The kept outputs of one stage in this process."""

    def __init__(self, stage: StageRunner, plan: CachePlan) -> None:
        """Reads nothing yet."""
        self._stage = stage
        self._plan = plan
        self._entries = EntryFolder(plan.folder, stage.name)
        self._begun_epoch = -1

    def call(self, compute: StageCall, keys: Sequence[Key], box: list[Any]) -> list[Any]:
        """Return the kept output of the item in `box`, or the result of `compute`. Empties the box."""
        stage, key = self._stage, keys[0]
        name = stage.run_timed(key, partial(self._name_entry, key, box[0]))
        kept = None if name is None else stage.run_timed(key, partial(self._entries.read, name))
        if kept is not None:
            return [self._use(kept, key, box)]
        results = compute(keys, box)
        if name is None or not self._entries.is_writable:
            return results
        if type(results[0]) is GeneratorType:
            return [self._keep_parts(name, key, results[0])]
        stage.run_timed(key, partial(self._keep, name, key, results[0]))
        return results

    def _use(self, kept: KeptOutput, key: Key, box: list[Any]) -> Any:
        box.clear()
        self._stage.seed_item(key)
        if kept.is_parts:
            return _iterate(kept.values)
        self._stage.count_item(key)
        return kept.values.pop()

    def _name_entry(self, key: Key, value: Any) -> str | None:
        """Return the name of an item's entry; None if nothing identifies the item."""
        plan, stage = self._plan, self._stage
        number, *parts = stage.global_key(key)
        if plan.identifies_by_input:
            if not _is_plain_index(value):
                return None
            identity = repr(value)
        elif plan.identities is None:
            identity = ""
        else:
            with _identities_lock:
                if stage.epoch != self._begun_epoch:
                    plan.identities.begin(stage.epoch, stage.seed)
                    self._begun_epoch = stage.epoch
                try:
                    identity = plan.identities.identify(number)
                except OSError:  # the stage will report the problem with the file
                    return None
        draw = None if plan.is_deterministic else (stage.epoch, number)
        description = repr((plan.fingerprint, identity, draw, parts))
        return hashlib.blake2b(description.encode(), digest_size=_NAME_BYTES).hexdigest()

    def _keep(self, name: str, key: Key, result: Any) -> None:
        with self._entries.stop_at_error(), self._entries.begin(name) as writer:
            self._add(writer, key, result)
            self._commit(writer, name, key, is_parts=False)

    def _add(self, writer: EntryWriter, key: Key, value: Any) -> None:
        try:
            writer.add(value)
        except UncachableOutputError as error:
            item = format_key(self._stage.global_key(key))
            raise UncachableResultError(self._stage.name, item, str(error)) from None

    def _commit(self, writer: EntryWriter, name: str, key: Key, *, is_parts: bool) -> None:
        """Commit an entry, unless the item's file changed while the stage worked on it."""
        if self._plan.identities is None or self._name_entry(key, None) == name:
            writer.commit(is_parts=is_parts)

    def _keep_parts(self, name: str, key: Key, parts: GeneratorType[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Yield the parts of a generator. Writes each part before it is yielded, because later stages may change it.

        The entry is committed when the generator ends.
        """
        entries = self._entries
        with contextlib.closing(parts), contextlib.ExitStack() as stack:
            with entries.stop_at_error():
                writer = stack.enter_context(entries.begin(name))
            for part in parts:
                if entries.is_writable:
                    with entries.stop_at_error():
                        self._add(writer, key, part)
                box = [part]
                del part
                yield box.pop()
            if entries.is_writable:
                with entries.stop_at_error():
                    self._commit(writer, name, key, is_parts=True)


def make_cached_call(stage: StageRunner, plan: CachePlan, compute: StageCall) -> StageCall:
    """Return `compute`, which calls a stage with an item, wrapped in a cache."""
    return partial(StageCache(stage, plan).call, compute)


def _iterate(values: list[Any]) -> Generator[Any, None, None]:
    values.reverse()
    while values:
        yield values.pop()


def _is_plain_index(value: Any) -> bool:
    return type(value) in _PLAIN_INDEX_TYPES or (
        type(value) in {list, tuple} and all(type(inner) in _PLAIN_INDEX_TYPES for inner in value)
    )
