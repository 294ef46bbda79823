"""iceoryx2: the producer fills a loan of shared memory, and the receiver gets it in place. Where it is installed.

No pickle: 8 bytes of number and the image, whose type the receiver knows. Both sides wait without polling: the
receiver for an event, the producer for a semaphore that counts free samples.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.hop.payload import Image, Item, make_image, make_item
from benchmarks.hop.peers import ProducerPeer, StopFlag, max_in_flight

_HEADER_BYTES = 64
"""The item's number, up to where the image may start."""


class _Services:
    """The service of the samples and that of the events, in a namespace of their own."""

    def __init__(self, folder: str, slots: int) -> None:
        import iceoryx2 as ice

        ice.set_log_level(ice.LogLevel.Error)
        config = ice.config.default()
        config.global_cfg.root_path = ice.Path.new(folder)
        config.global_cfg.prefix = ice.FileName.new(Path(folder).name)
        node = ice.NodeBuilder.new().config(config).create(ice.ServiceType.Ipc)
        self._node = node  # the services live as long as their node
        overwrites = False  # a positional argument
        samples = node.service_builder(ice.ServiceName.new("items")).publish_subscribe(ice.Slice[ctypes.c_uint8])
        samples = samples.payload_alignment(ice.Alignment.new(_HEADER_BYTES)).enable_safe_overflow(overwrites)
        self.samples = samples.subscriber_max_buffer_size(slots).open_or_create()
        self.events = node.service_builder(ice.ServiceName.new("events")).event().open_or_create()


def _view(payload: Any, nbytes: int) -> Image:
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(payload.as_ptr()))


def _feed(folder: str, free_slots: Any, nbytes: int) -> None:
    stop, image, nbytes_sent = StopFlag(), make_image(nbytes), _HEADER_BYTES + nbytes
    services = _Services(folder, max_in_flight(nbytes))
    publisher = services.samples.publisher_builder().initial_max_slice_len(nbytes_sent).create()
    notifier = services.events.notifier_builder().create()
    for number in count():
        free_slots.acquire()
        if stop.requested:
            return
        sample = publisher.loan_slice_uninit(nbytes_sent)
        sent = _view(sample.payload(), nbytes_sent)
        sent[:8].view(np.int64)[0] = number
        np.copyto(sent[_HEADER_BYTES:], image)
        sample.assume_init().send()
        notifier.notify()


class IceoryxPeer(ProducerPeer):
    """Publish and subscribe with loans. The image is valid until the next one is received."""

    name = "iceoryx2"

    def __init__(self, nbytes: int) -> None:
        self._nbytes, slots = nbytes, max_in_flight(nbytes)
        self._folder = tempfile.TemporaryDirectory(prefix="stagepipe_ice_")
        self._services = _Services(self._folder.name, slots)
        self._subscriber = self._services.samples.subscriber_builder().create()
        self._listener = self._services.events.listener_builder().create()
        self._free_slots = multiprocessing.get_context("forkserver").Semaphore(slots - 1)  # the receiver holds one
        self._held: Any = None
        super().__init__(_feed, self._folder.name, self._free_slots, nbytes, max_backlog=2 + slots)
        self.receive: Callable[[], Item] = self._receive

    def _receive(self) -> Item:
        if self._held is not None:
            self._held.delete()
            self._held = None
            self._free_slots.release()
        while (sample := self._subscriber.receive()) is None:
            self._listener.blocking_wait()
        self._held = sample
        received = _view(sample.payload(), _HEADER_BYTES + self._nbytes)
        return make_item(int(received[:8].view(np.int64)[0]), received[_HEADER_BYTES:])

    def close(self) -> None:
        """End the producer; what is in flight is dropped."""
        self._process.terminate()
        self._free_slots.release()
        self._join_producer()
        if self._held is not None:
            self._held.delete()
        del self._subscriber, self._listener, self._services
        shared_memory = Path("/dev/shm")  # noqa: S108 - iceoryx2 leaves a segment of its own there
        for left in shared_memory.glob(f"{Path(self._folder.name).name}*"):
            left.unlink(missing_ok=True)
        self._folder.cleanup()
