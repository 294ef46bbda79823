"""Moves an item's arrays to the device: tensors over the same memory, page-locked blocks, copies to the GPU.

Runs in the training process. No other module knows about devices. Each `Loader` has one `DeviceTransfer` and calls it
with each item.

A whole block is registered with CUDA when its first item arrives, and stays registered. A registration costs about as
much as a copy, but blocks are reused, so each is registered once. Blocks of 64 KiB and more start and end at page
boundaries, so two registrations never share a page. The workers of such a pipeline keep the pages of idle blocks
(`keep_idle_pages`); otherwise the device would read pages that the workers had given back.

CUDA locks pages, not addresses. If a registered block were unmapped and its address mapped again, the device would read
the old pages, so each registration keeps its mapping. After a worker dies, its arena is mapped again elsewhere, and the
registrations of the old mapping are removed.
"""

from __future__ import annotations

import contextlib
import operator
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from stagepipe.core import keep_until_exit, read_fields, register_owner, warn_user
from stagepipe.transport import MIN_PUNCH_BYTES, Lease, size_class_bytes

_TENSOR_DTYPE_KINDS = frozenset("biufc")
"""Dtype kinds (`numpy.dtype.kind`) that tensors support: bool, int, uint, float, complex."""


def to_tensors(item: Any) -> Any:
    """Replace every NumPy array and NumPy number of an item with a tensor, at any depth, and keep all other values.

    A tensor shares the array's memory (same shape, same dtype, writable) and keeps it alive. Arrays and numbers of
    dtypes that torch lacks (strings, objects, dates, structured, long double) stay unchanged, as do subclasses of
    ndarray and Python's numbers. Mutable dicts, lists and dataclasses are changed in place, because the receiver owns
    the item.

    >>> to_tensors({"x": np.zeros(2, np.float32), "name": "a"})
    {'x': tensor([0., 0.]), 'name': 'a'}

    Raises TypeError, with the field, for a value that cannot be converted, such as a tuple of a class whose
    constructor takes other arguments.
    """
    try:
        return map_leaves(item, _to_tensor)
    except (TypeError, ValueError, RuntimeError) as error:
        path = _find_path(item)
        place = f"the field `{path}`" if path else "the item"
        raise TypeError(
            f"Loader: {place} cannot be converted to tensors: {error}; convert it in a stage before"
        ) from error


def _find_path(item: Any) -> str:
    """Return the path of the value in `item` that cannot be converted, such as `views.left`; "" for `item` itself."""
    named = read_fields(item)
    if named is None:
        named = dict(enumerate(item)) if isinstance(item, list | tuple) else {}
    for name, child in named.items():
        try:
            map_leaves(child, _to_tensor)
        except (TypeError, ValueError, RuntimeError):
            inner = _find_path(child)
            return f"{name}.{inner}" if inner else str(name)
    return ""


_PLAIN_TYPES = frozenset({int, float, bool, str, bytes, type(None)})
"""Leaves of exactly these types are never converted."""


def map_leaves(item: Any, convert: Callable[[Any], Any]) -> Any:
    """Replace every value that is neither plain nor a dict, list, tuple or dataclass with `convert(value)`."""
    kind = type(item)
    if kind is dict or isinstance(item, list):
        for key, value in item.items() if kind is dict else enumerate(item):
            if type(value) not in _PLAIN_TYPES:
                item[key] = map_leaves(value, convert)
        return item
    if isinstance(item, tuple):
        values = [map_leaves(value, convert) for value in item]
        if all(map(operator.is_, values, item)):  # unchanged: a tuple class may have another constructor
            return item
        return item._make(values) if hasattr(item, "_make") else kind(values)
    if isinstance(item, Mapping):
        return _map_mapping_leaves(item, convert)
    if is_dataclass(item) and not isinstance(item, type) and not isinstance(item, torch.Tensor):
        for field in fields(item):
            value = getattr(item, field.name)
            converted = map_leaves(value, convert)
            if converted is not value:
                object.__setattr__(item, field.name, converted)  # even if frozen: nobody else has this instance
        return item
    return convert(item)


def _map_mapping_leaves(item: Mapping[Any, Any], convert: Callable[[Any], Any]) -> Any:
    """Keep the type of another mapping (an OrderedDict, a BatchEncoding) if it is mutable; otherwise return a dict."""
    converted = {key: map_leaves(value, convert) for key, value in item.items()}
    if not hasattr(item, "__setitem__"):
        return converted
    for key, value in converted.items():
        item[key] = value
    return item


def _to_tensor(value: Any) -> Any:
    if type(value) is np.ndarray or isinstance(value, np.generic):
        if value.dtype.kind not in _TENSOR_DTYPE_KINDS or (
            value.dtype.itemsize > _MAX_ITEMSIZE_BYTES.get(value.dtype.kind, 8)
        ):
            return value
        return torch.from_numpy(_to_torch_compatible(np.asarray(value)))
    return value


_MAX_ITEMSIZE_BYTES = {"c": 16}
"""Largest item size of tensors, for dtype kinds in which it is not 8 bytes."""


def _to_torch_compatible(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the array, or a copy if torch cannot wrap it.

    torch cannot wrap arrays that have a foreign byte order, are read-only, or have strides that are negative or not a
    multiple of an element, such as a field of a structured array. A read-only array is copied because a stage in this
    process may still hold it.
    """
    if not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or any(stride < 0 or stride % array.itemsize for stride in array.strides):
        return array.copy()
    return array


FindLease = Callable[[int, int], Lease | None]
"""Finds the lease that holds some bytes, by address and size; None if no lease holds them."""


class CopyEvent(Protocol):
    """An event of a CUDA stream (torch.cuda.Event)."""

    def query(self) -> bool:
        """Return whether the stream has passed it."""

    def synchronize(self) -> None:
        """Wait until the stream has passed it."""


class HostMemoryRegistrar(Protocol):
    """CUDA's calls for host memory. `register` and `unregister` return CUDA's error codes; 0 is success."""

    def register(self, address: int, nbytes: int) -> int:
        """Lock pages for the devices (cudaHostRegister)."""

    def unregister(self, address: int) -> int:
        """Unlock the pages (cudaHostUnregister)."""

    def record_events(self) -> Sequence[CopyEvent]:
        """Record an event on the current stream of each device in use."""

    def wait_for_copies(self) -> None:
        """Wait until no device reads host memory."""


class CudaHostMemoryRegistrar:
    """The CUDA runtime that ships with torch.

    https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__MEMORY.html
    """

    def __init__(self) -> None:
        """Initialize CUDA in this process."""
        import torch

        torch.cuda.init()  # type: ignore[no-untyped-call]
        self._cuda: Any = torch.cuda
        self._cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        self._has_context: Callable[[int], bool] = torch._C._cuda_hasPrimaryContext  # noqa: SLF001 - no public name

    def register(self, address: int, nbytes: int) -> int:
        """Lock pages for all devices (cudaHostRegisterPortable, flag 1)."""
        error_code = int(self._cudart.cudaHostRegister(address, nbytes, 1))
        if error_code:
            self._clear_last_error()
        return error_code

    def unregister(self, address: int) -> int:
        """See `HostMemoryRegistrar`."""
        error_code = int(self._cudart.cudaHostUnregister(address))
        if error_code:
            self._clear_last_error()
        return error_code

    def record_events(self) -> Sequence[CopyEvent]:
        """See `HostMemoryRegistrar`."""
        return [self._cuda.current_stream(device).record_event() for device in self._devices_in_use()]

    def wait_for_copies(self) -> None:
        """See `HostMemoryRegistrar`."""
        for device in self._devices_in_use():
            self._cuda.synchronize(device)

    def _devices_in_use(self) -> list[int]:
        """Return the devices that this process has used. Using another one would take half a gigabyte of its memory."""
        return [device for device in range(self._cuda.device_count()) if self._has_context(device)]

    def _clear_last_error(self) -> None:
        """Clear CUDA's last error, which torch would otherwise raise at the user's next operation."""
        import torch

        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device="cuda")


@dataclass(frozen=True)
class _PinnedBlock:
    arena: int
    nbytes: int
    mapped_memory: Any  # keeps the mapping, not the block


class PinnedBlocks:
    """The blocks that are registered with CUDA."""

    def __init__(self, find_lease: FindLease, registrar: HostMemoryRegistrar) -> None:
        """`find_lease` finds the block of some bytes, and `registrar` registers it."""
        self._find_lease = find_lease
        self._registrar = registrar
        self._blocks: dict[int, _PinnedBlock] = {}  # by address
        self._mapped_memory: dict[int, Any] = {}  # by arena: the mapping of its registered blocks
        self._is_refused = False
        # For objects that nobody closes. Not at exit: the driver unregisters then, and CUDA may be gone already.
        weakref.finalize(self, _unregister, self._blocks, registrar).atexit = False

    def pin(self, address: int, nbytes: int) -> Lease | None:
        """Register the block that holds these bytes, and return its lease.

        Returns None if no block or a small block holds the bytes, or if CUDA refuses.
        """
        if nbytes < MIN_PUNCH_BYTES or self._is_refused:
            return None
        lease = self._find_lease(address, nbytes)
        if lease is None or lease.block_id is None:
            return None
        arena = lease.block_id[0]
        if self._mapped_memory.setdefault(arena, lease.base) is not lease.base:
            self._unpin_arena(arena)
            self._mapped_memory[arena] = lease.base
        size = size_class_bytes(lease.size)
        block = self._blocks.get(lease.address)
        if block is not None and block.nbytes >= size:
            return lease
        if block is not None:  # a smaller item used this block earlier, and only that part is registered
            _unregister({lease.address: self._blocks.pop(lease.address)}, self._registrar)
        error_code = self._registrar.register(lease.address, size)
        if error_code:
            self._warn_refused(error_code, size)
            return None
        self._blocks[lease.address] = _PinnedBlock(arena, size, lease.base)
        return lease

    def record_events(self) -> Sequence[CopyEvent]:
        """Record events that follow all copies that the caller has started on its current streams."""
        return self._registrar.record_events()

    def _unpin_arena(self, arena: int) -> None:
        """Unregister all blocks of an arena, which belong to an earlier mapping."""
        addresses = [address for address, block in self._blocks.items() if block.arena == arena]
        _unregister({address: self._blocks.pop(address) for address in addresses}, self._registrar)

    def _warn_refused(self, error_code: int, nbytes: int) -> None:
        self._is_refused = True
        warn_user(
            f"pin_memory: CUDA refused to lock {nbytes} bytes of shared memory (error {error_code}); from now on "
            "copies to the device go through the driver's own buffer; allow more locked memory (`ulimit -l unlimited`)",
            RuntimeWarning,
        )

    def abandon_in_child(self) -> None:
        """Forget the blocks without unregistering them, in a forked child."""
        keep_until_exit(dict(self._blocks))
        self._blocks.clear()

    def close(self) -> None:
        """Wait for the copies in progress and unregister all blocks."""
        _unregister(self._blocks, self._registrar)
        self._mapped_memory.clear()


def _unregister(blocks: dict[int, _PinnedBlock], registrar: HostMemoryRegistrar) -> None:
    """Unregister blocks and forget them, which may unmap them."""
    if blocks:
        registrar.wait_for_copies()
    for address in list(blocks):
        registrar.unregister(address)
        del blocks[address]


_NO_CUDA_MESSAGE = (
    "pin_memory=True has no effect: no CUDA device was found, and only a GPU uses pinned memory; remove it, or pass "
    "device= where there is one"
)


_PendingCopies = deque[tuple[Sequence[CopyEvent], Any]]
"""Events, and the objects to keep alive until the events have passed."""


class DeviceTransfer:
    """Moves the tensors of an item. Without `pin_memory` and `device`, it returns the item unchanged.

    Copies to a GPU run on their own CUDA stream, from pinned blocks, while the previous step still computes. The
    current stream waits for the copy. With only `pin_memory`, the caller copies, on a stream of its choice.

    A device reads a pinned block after the call that started the copy has returned. So the block stays leased until an
    event after the copy has passed. The event is on the copy stream, or on the stream that is current when the caller
    has dropped the tensor and asks for an item.

    >>> DeviceTransfer(device="cpu")({"x": torch.zeros(1)})
    {'x': tensor([0.])}
    """

    def __init__(
        self,
        *,
        pin_memory: bool = False,
        device: torch.device | str | int | None = None,
        find_lease: FindLease | None = None,
        registrar: HostMemoryRegistrar | None = None,
    ) -> None:
        """`find_lease` finds blocks (None: pin nothing). Warns if pinning has no effect, as DataLoader does."""
        self.device = None if device is None else torch.device(device)
        is_cuda = self.device is not None and self.device.type == "cuda"
        if is_cuda and self.device is not None and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())  # fixed, even if the caller's changes
        if pin_memory and registrar is None and not torch.cuda.is_available():
            warn_user(_NO_CUDA_MESSAGE, UserWarning)
            pin_memory = False
        self.is_pinning = pin_memory or is_cuda
        self._find_lease = find_lease
        self._registrar = registrar
        self._pinned_blocks: PinnedBlocks | None = None
        self._is_noop = self.device is None and not self.is_pinning
        self._copy_stream: Any = torch.cuda.Stream(self.device) if is_cuda else None  # type: ignore[no-untyped-call]
        self._pending_copies: _PendingCopies = deque()
        self._yielded_blocks: list[tuple[StorageWeakRef, Lease]] = []
        """Pinned blocks under tensors of the caller, which may copy from them."""
        # For objects that nobody closes: a worker must not write to a block that a device reads.
        weakref.finalize(self, _wait_for_copies, self._pending_copies).atexit = False
        register_owner(self)

    def __call__(self, item: Any) -> Any:
        """Return the item with its tensors pinned or on the device."""
        if self._is_noop:
            return item
        if self.is_pinning and self._find_lease is not None:
            map_leaves(item, self._pin_tensor)
        if self._copy_stream is not None:
            return self._copy_on_stream(item)
        return item if self.device is None else map_leaves(item, self._move_tensor)

    def release_blocks(self) -> None:
        """Release the blocks that no copy reads any more. Call it before each item, on the caller's current stream."""
        if self._yielded_blocks:
            self._track_dropped_blocks()
        while self._pending_copies and all(event.query() for event in self._pending_copies[0][0]):
            self._pending_copies.popleft()

    def _track_dropped_blocks(self) -> None:
        """Keep the blocks of dead tensors until the copies that the caller has started are over."""
        held: list[tuple[StorageWeakRef, Lease]] = []
        dropped: list[Lease] = []
        for storage, lease in self._yielded_blocks:
            if storage.expired():  # type: ignore[no-untyped-call]
                dropped.append(lease)
            else:
                held.append((storage, lease))
        if dropped and self._pinned_blocks is not None:
            self._yielded_blocks = held
            self._pending_copies.append((self._pinned_blocks.record_events(), dropped))

    def _pin_tensor(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.device.type == "cpu" and self._find_lease is not None:
            if self._pinned_blocks is None:
                self._pinned_blocks = PinnedBlocks(self._find_lease, self._registrar or CudaHostMemoryRegistrar())
            storage = value.untyped_storage()
            lease = self._pinned_blocks.pin(storage.data_ptr(), storage.nbytes())
            if lease is not None and self._copy_stream is None:
                self._yielded_blocks.append((StorageWeakRef(storage), lease))  # type: ignore[no-untyped-call]
        return value

    def _move_tensor(self, value: Any) -> Any:
        return value.to(self.device, non_blocking=True) if isinstance(value, torch.Tensor) else value

    def _copy_on_stream(self, item: Any) -> Any:
        """Return the item on the GPU, copied on the copy stream."""
        sources: list[torch.Tensor] = []
        current_stream = torch.cuda.current_stream(self.device)

        def move(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if value.device.type != "cpu":  # a stage in this process made it, on the current stream
                with torch.cuda.stream(current_stream):
                    return value.to(self.device, non_blocking=True)
            sources.append(value)
            moved = value.to(self.device, non_blocking=True)
            moved.record_stream(current_stream)  # allocated from the copy stream's pool, used on the current stream
            return moved

        with torch.cuda.stream(self._copy_stream):
            item = map_leaves(item, move)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._copy_stream)
        current_stream.wait_event(event)
        self._pending_copies.append(([event], sources))
        return item

    def abandon_in_child(self) -> None:
        """Leave the copies and pinned blocks to the process that made them, because CUDA does not work in a child."""
        keep_until_exit((list(self._pending_copies), self._yielded_blocks))
        self._pending_copies.clear()
        self._yielded_blocks = []
        if self._pinned_blocks is not None:
            self._pinned_blocks.abandon_in_child()
            self._pinned_blocks = None

    def close(self) -> None:
        """Wait for the copies in progress and unpin all blocks. Tensors on them stay valid."""
        if self._pinned_blocks is not None:
            self._pinned_blocks.close()
            self._pinned_blocks = None
        self._yielded_blocks.clear()
        _wait_for_copies(self._pending_copies)


def _wait_for_copies(pending_copies: _PendingCopies) -> None:
    while pending_copies:
        for event in pending_copies[0][0]:
            event.synchronize()
        pending_copies.popleft()
