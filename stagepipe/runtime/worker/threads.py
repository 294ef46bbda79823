"""Several items in progress in one worker, each on a separate thread: the `concurrency` of a stage.

Runs in the worker's process. For functions that wait or release the interpreter's lock: the threads share the stage's
object, while several workers would each build their own. A thread of an `async def` stage waits for its task, which
runs on the stage's event loop.

- Only the main thread receives, sends, allocates shared memory and writes counters. A thread asks it for these and
  waits for the answer. The main thread answers while it waits for items or for threads, never inside a send.
- An item is in the slot of its thread on the board from before it is unpickled until its result has been sent.
- Results leave in the order in which they are ready; the order point behind the stage sorts them by their keys.
- A suspect that a seek names is the only item in the worker, from before it is unpickled until its result has left.
- A generation is entered when no thread has an item. Otherwise a result would be sent as one of the next epoch.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from time import perf_counter_ns
from typing import Any, Final, NamedTuple, cast

from stagepipe.core import Key, stage_locals
from stagepipe.plan import HopPlan
from stagepipe.runtime.execution import Box, ItemHeader, StageChain, StageError, StageRunner
from stagepipe.runtime.protocol import Seek
from stagepipe.runtime.worker.control_client import ControlClient
from stagepipe.runtime.worker.hop_output import HopOutput, Loan, SeekInterruptError, WorkerContext, allocate_shared
from stagepipe.runtime.worker.roles import StageRole
from stagepipe.timing import ItemSlot, ProcessCounter, TraceBuffer
from stagepipe.transport import PacketKind, ReceivedPacket, Receiver, UnreadableItemError

_TICK_S: Final = 0.01
"""The main thread's tick interval while all threads work: the longest time that a block stays in use after release."""


class MainThread(NamedTuple):
    """Resources that only the main thread of a worker may use, and the hop for which it lends memory."""

    control: ControlClient
    tick: Callable[[], None]
    loan: Loan
    outbound: HopPlan


class ThreadTrace:
    """The trace of the process, for use in a thread."""

    def __init__(self, trace: Any, thread: int, ask: Callable[[Callable[[], Any]], Any]) -> None:
        """`thread` is its number, from 1. `ask` calls a function on the main thread."""
        self._trace = trace
        self._thread = thread
        self._ask = ask

    def begin_item(self, key: Key, begin_ns: int) -> None:
        """Do nothing: an item begins when its thread takes it."""

    def take_item_begin(self, _: Key) -> int:
        """Return the current time."""
        return perf_counter_ns()

    def add(self, *values: Any, is_failed: bool = False) -> None:
        """Add a record of a call or an item: with kind, begin, end and key, possibly a stage, and the thread."""
        self._ask(partial(self._trace.add, *(*values, 0)[:5], self._thread, is_failed=is_failed))


class ItemThread:
    """A thread and its item. It is the output of its own chain: it asks the main thread to send."""

    def __init__(self, number: int, stage: StageRunner, slot: ItemSlot, role: ConcurrentRole) -> None:
        """Thread `number`, from 1. `stage` belongs only to this thread, but its target to all threads."""
        self.stage = stage
        if stage.trace is not None:
            stage.trace = cast("TraceBuffer", ThreadTrace(stage.trace, number, self._ask))
        self.slot = slot
        self.chain = StageChain([stage], self)
        self.queue_ns = 0
        """The time that its item waited before this process."""
        self.asked_ns = 0
        """The total time that it has waited for answers."""
        self.idle_since_ns = perf_counter_ns()
        stage.get_queue_ns = lambda: self.queue_ns
        self._role = role
        self._inbox: SimpleQueue[Any] = SimpleQueue()

    def start(self, packet: ReceivedPacket) -> None:
        """Work on an item, whose key is in the slot."""
        self.slot.running_since_ns = perf_counter_ns()
        self._inbox.put(packet)

    def answer(self, result: Any, error: BaseException | None = None) -> None:
        """Return from the call that waits for the main thread."""
        self._inbox.put((result, error))

    def run(self, main: MainThread, identity: Any) -> None:
        """Work on one item after another."""
        stage_locals.worker_identity = identity
        stage_locals.item_clock = self.slot
        stage_locals.allocate = partial(
            allocate_shared, lambda nbytes: self._ask(partial(main.loan, nbytes)), main.outbound
        )
        while True:
            error = self._push(self._inbox.get())
            self.slot.running_since_ns = 0
            self._role.post(self, error)
            del error  # its frames hold the item

    def _push(self, packet: ReceivedPacket) -> BaseException | None:
        box = [packet.value]
        packet.value = None
        try:
            self.chain.push(packet.key, box, packet.samples, packet.meta)
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            return error
        return None

    def _ask(self, call: Callable[[], Any]) -> Any:
        """Return the result of `call` on the main thread. The item does not age meanwhile."""
        began_ns = perf_counter_ns()
        self.slot.running_since_ns = 0
        self._role.post(self, call)
        result, error = self._inbox.get()
        self.slot.running_since_ns = ended_ns = perf_counter_ns()
        self.asked_ns += ended_ns - began_ns
        if error is not None:
            raise error
        return result

    def send_item(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        """Send an item."""
        self._ask(lambda: self._role.send_result(key, box, samples, meta))

    def send_tombstone(self, key: Key, samples: int, meta: bytes) -> None:
        """Report that the stage dropped the item."""
        self._ask(lambda: self._role.output.send_tombstone(key, samples, meta))

    def send_skip(self, stage: StageRunner, key: Key, error: StageError | None, header: ItemHeader) -> None:
        """Report that the item failed."""
        self._ask(lambda: self._role.output.send_skip(stage, key, error, header))

    def send_close(self, key: Key, part_count: int, meta: bytes) -> None:
        """Report the number of parts."""
        self._ask(lambda: self._role.output.send_close(key, part_count, meta))


class ConcurrentRole(StageRole):
    """Works on as many items at a time as there are slots on the board. Its methods run on the main thread."""

    def __init__(
        self, stage: StageRunner, output: HopOutput, receiver: Receiver, worker_context: WorkerContext, main: MainThread
    ) -> None:
        """Start the threads."""
        super().__init__([stage], output, receiver, worker_context)
        receiver.on_item = self._note_item
        region = worker_context.region
        self._stage = stage
        self._sending = StageChain([], output)
        self._main = main
        self._requests: deque[tuple[ItemThread, Any]] = deque()
        self._is_draining = False
        self._has_suspect = False
        """Whether the item in progress must be the only one."""
        self._idle_ns = 0
        self._first_waits_ns = (region[ProcessCounter.STARVED_NS], region[ProcessCounter.BLOCKED_NS])
        numbered = enumerate(zip(stage.make_twins(len(region.slots)), region.slots, strict=True), 1)
        self._threads = [ItemThread(number, twin, slot, self) for number, (twin, slot) in numbered]
        self._idle = list(self._threads)
        name, arguments = threading.current_thread().name, (main, stage_locals.worker_identity)
        for number, thread in enumerate(self._threads, 1):
            threading.Thread(target=thread.run, args=arguments, name=f"{name}.{number}", daemon=True).start()

    @property
    def output(self) -> HopOutput:
        """The hop. Raises SeekInterruptError once the generation has ended."""
        if self._is_draining:
            raise SeekInterruptError
        return self._output

    def send_result(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        """Send the result of a thread's stage. Raises SeekInterruptError once the generation has ended."""
        if self._is_draining:
            raise SeekInterruptError
        self._sending.push(key, box, samples, meta)

    def apply_seek(self, seek: Seek) -> None:
        """Enter the generation, once all threads have finished their items."""
        self.drain()
        super().apply_seek(seek)
        for thread in self._threads:
            thread.slot.key = ()
            thread.stage.start_epoch(seek.epoch)
            thread.chain.set_forced_skips(seek.forced_skips)

    @property
    def is_idle(self) -> bool:
        """Whether no thread has an item, and none has been received."""
        return len(self._idle) == len(self._threads) and super().is_idle

    def drain(self) -> None:
        """Wait until no thread has an item. Drops their remaining results, and cancels tasks."""
        self._is_draining = True
        loop = self._stage.event_loop
        if loop is not None:
            loop.abandon()
        while len(self._idle) < len(self._threads):
            self._wait()
        if loop is not None:
            loop.resume()
        self._is_draining = False

    def step(self) -> None:
        """Give one item to a thread, as soon as one is free."""
        self.serve()
        if self._worker_context.is_retiring() and self._receiver.is_empty:
            self._wait()
            return
        while not self._idle or (self._has_suspect and len(self._idle) < len(self._threads)):
            self._wait()
        self._has_suspect = False
        try:
            packet = self._receiver.receive_one(self._generation)
        except UnreadableItemError as error:
            self._reject(error)
            self._idle[-1].slot.key = ()
            return
        if packet is None:
            raise SeekInterruptError
        if packet.kind != PacketKind.ITEM:
            self._output.forward(packet)
            return
        self._note_item(packet.key)
        thread = self._idle.pop()
        thread.queue_ns = self._receiver.queue_ns
        self._idle_ns += perf_counter_ns() - thread.idle_since_ns
        thread.start(packet)

    def _note_item(self, key: Key) -> None:
        """Put an item that is about to be unpickled into the slot of the next thread."""
        if self._chain.is_unbatched(key[0], key[0]):
            while len(self._idle) < len(self._threads):
                self._wait()
            self._has_suspect = True
        self._idle[-1].slot.key = key

    def _wait(self) -> None:
        """Wait for a thread or a command."""
        self._main.tick()
        if not self._requests:
            self._main.control.wait(_TICK_S)
        self.serve()
        if not self._is_draining and self._worker_context.is_interrupted():
            raise SeekInterruptError

    # ------------------------------------------------------------------ requests of the threads

    def post(self, thread: ItemThread, request: Any) -> None:
        """Request a call on the main thread. A request that is not callable ends an item: its error, or None."""
        self._requests.append((thread, request))
        self._main.control.wake_event.set()

    def serve(self) -> None:
        """Execute the requests of the threads. Also called at each tick of a wait for an item."""
        while self._requests:
            thread, request = self._requests.popleft()
            if not callable(request):
                self._finish(thread, request)
                continue
            try:
                result = request()
            except BaseException as error:  # noqa: BLE001 - it belongs to the thread
                thread.answer(None, error)
            else:
                thread.answer(result)
                del result
            del request

    def _finish(self, thread: ItemThread, error: BaseException | None) -> None:
        key = thread.slot.key
        self._stage.take_counts(thread.stage, key)
        thread.slot.key = ()
        thread.idle_since_ns = perf_counter_ns()
        self._idle.append(thread)
        if error is not None and not self._is_draining and not isinstance(error, SeekInterruptError):
            self._worker_context.region.set_current_key(key)  # for the report of the error
            raise error

    def measure_waits(self, blocked_ns: int) -> tuple[int, int]:
        """Return the mean time that a thread had no item, and the mean time that it waited for room downstream.

        `blocked_ns` is the time that the main thread waited for room.
        """
        now_ns = perf_counter_ns()
        starved_ns, asked_ns = self._first_waits_ns
        idle_ns = self._idle_ns + sum(now_ns - thread.idle_since_ns for thread in self._idle)
        starved_ns += idle_ns // len(self._threads)
        asked_ns += sum(thread.asked_ns for thread in self._threads) // len(self._threads)
        return starved_ns, min(blocked_ns, asked_ns)
