"""The event loop of a stage whose function is `async def`. In workers and inline; nothing else imports asyncio.

The loop has its own thread, which builds, calls and closes the target: so a client session made in `__init__` belongs
to the loop. A thread with an item starts a task and waits for its end. All other work on the item (conditions, retries,
the cache, sending) stays on the item's thread, as for any other function.

- A call that exceeds the stage's `timeout` is cancelled. The item has then failed, and the process continues.
- For the watchdog, an item runs while the code of one of its tasks runs, and from its cancellation until its end. It
  does not run while it waits for a server. So a call that blocks the loop is blamed on its own item, not on concurrent
  ones, and a call that cannot be cancelled is killed.
- A call that is no longer needed (a seek, the end of the run) is cancelled too, and counts nowhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import linecache
import logging
import sys
import sysconfig
import threading
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar
from functools import partial
from time import perf_counter_ns
from types import FrameType, coroutine
from typing import Any, Final, Protocol

from stagepipe.core import PACKAGE_DIR, Context, end_forked_child, format_ns, stage_locals, task_context, this_process
from stagepipe.runtime.execution.errors import CallAbandonedError, CallTimeoutError
from stagepipe.runtime.protocol import format_key
from stagepipe.timing import AWAITING

_log = logging.getLogger("stagepipe")

_MAX_STEP_NS: Final = 250_000_000
"""A longer step is named in a warning. Loops are made for steps of microseconds, and server responses wait meanwhile.
The limit is far above the delays of a busy machine, and below the delays that a user would notice."""
_CHECK_INTERVAL_S: Final = 0.1
"""The interval between looks at the current step; a look takes about 20 us."""
_CLOSE_TIMEOUT_S: Final = 4.0
"""The time for cancelled tasks and `close` to end: a second less than a worker has to exit after the stop command."""
_JOIN_TIMEOUT_S: Final = 0.5


class ItemClock(Protocol):
    """Tells the watchdog how long the stage's code has worked on a thread's item: a slot of the board."""

    running_since_ns: int


class _PrivateClock:
    """The clock of a call without a watchdog: inline, and while a target is built or closed."""

    running_since_ns = 0


_Box = list[Callable[[], Coroutine[Any, Any, Any]]]
"""A list with one function. The loop's thread pops and calls it, and is then the only holder of the item."""


class LoopCall:
    """A call on its way through the loop."""

    __slots__ = ("clock", "context", "done", "error", "is_abandoned", "made", "overdue_since_ns", "result", "task")

    def __init__(self, made: _Box, context: Context | None, clock: ItemClock) -> None:
        """The loop's thread calls the function in `made` for the coroutine. Without `context`, there is no item."""
        self.made = made
        self.context = context
        self.clock = clock
        self.done = threading.Lock()
        """Held until the task has ended. Tasks that it started may continue."""
        self.done.acquire()
        self.result: Any = None
        self.error: BaseException | None = None
        self.task: asyncio.Task[None] | None = None
        self.overdue_since_ns = 0
        """The time of its cancellation; 0 if it was not cancelled."""
        self.is_abandoned = False

    def end(self, _: object) -> None:
        """Wake the waiting thread, which now owns its slot again."""
        self.clock = _PrivateClock()
        self.done.release()


_current_call: ContextVar[LoopCall | None] = ContextVar("stagepipe_call", default=None)


class StageLoop:
    """An event loop and its thread."""

    def __init__(self, label: str, timeout_ns: int | None) -> None:
        """Start the thread. `label` names the stage in messages. `timeout_ns` limits each call."""
        self._label = label
        self._timeout_ns = timeout_ns
        self._pid = this_process.pid
        self._calls: set[LoopCall] = set()
        """The calls in progress. Only the loop's thread changes it."""
        self._step: tuple[LoopCall, int] | None = None
        """The call whose code runs, and the time at which the step began."""
        self._named_places: set[str] = set()
        self._is_abandoning = False
        self._has_ended = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._loop.set_task_factory(self._make_task)  # type: ignore[arg-type]  # it takes any options
        name = threading.current_thread().name
        arguments = (stage_locals.worker_identity,)
        self._thread = threading.Thread(target=self._run, args=arguments, name=f"{name}.loop", daemon=True)
        self._thread.start()
        threading.Thread(target=self._watch, name=f"{name}.watch", daemon=True).start()

    def _run(self, identity: Any) -> None:
        stage_locals.worker_identity = identity
        asyncio.set_event_loop(self._loop)
        while not self._has_ended.is_set():
            with contextlib.suppress(SystemExit, KeyboardInterrupt):  # raised by a user's task, which has it as well
                self._loop.run_forever()

    # ------------------------------------------------------------------ for the other threads

    def build(self, build: Callable[[], Any]) -> Any:
        """Call `build` on the loop's thread, while the loop runs, and return its result."""

        async def run() -> Any:
            return build()

        return self._wait(LoopCall([run], None, _PrivateClock()), None)

    def wrap(self, function: Callable[..., Any]) -> LoopFunction:
        """Return a function that calls a coroutine function and waits for its result."""
        return LoopFunction(self, function)

    def call(self, made: _Box) -> Any:
        """Return the result of the coroutine that the function in `made` returns, for the item of this thread.

        Raises the coroutine's exception, CallTimeoutError after the stage's `timeout`, and CallAbandonedError if the
        result is no longer needed.
        """
        clock: ItemClock = stage_locals.item_clock or _PrivateClock()
        clock.running_since_ns = AWAITING
        try:
            return self._wait(LoopCall(made, copy.copy(stage_locals.context), clock), self._timeout_ns)
        finally:
            clock.running_since_ns = perf_counter_ns()

    def _wait(self, call: LoopCall, timeout_ns: int | None) -> Any:
        self._loop.call_soon_threadsafe(self._start, call)
        limit_s = -1 if timeout_ns is None else timeout_ns / 1e9
        try:
            if not call.done.acquire(timeout=limit_s):
                self._loop.call_soon_threadsafe(self._cancel, call)
                if not call.done.acquire(timeout=limit_s):
                    self._let_age(call)
                    call.done.acquire()
        except BaseException:  # Ctrl-C, inline
            self._loop.call_soon_threadsafe(self._cancel, call)
            raise
        if call.is_abandoned:
            raise CallAbandonedError
        error, result = call.error, call.result
        call.error = None  # its frames hold the call
        if call.overdue_since_ns and (error is not None or result is None):
            cause = None if isinstance(error, asyncio.CancelledError) else error
            raise CallTimeoutError(f"exceeded its `timeout` of {format_ns(timeout_ns or 0)}") from cause
        if error is not None:
            raise error
        return result

    def _let_age(self, call: LoopCall) -> None:
        """Let a call that cannot be cancelled end the process, unless a step of another item blocks the loop.

        A callback, or a task that an earlier item started, may also block it.
        """
        step = self._step
        if call.overdue_since_ns == 0 and (step is None or not step[0].done.locked()):
            call.clock.running_since_ns = perf_counter_ns()

    def abandon(self) -> None:
        """Cancel all calls, and let new calls raise CallAbandonedError until `resume`."""
        self._is_abandoning = True
        self._loop.call_soon_threadsafe(self._abandon_all)

    def resume(self) -> None:
        """Accept calls again."""
        self._is_abandoning = False

    def close(self, target: Any) -> None:
        """Cancel running tasks, call the target's `close` if it has one, and end the thread. Errors become warnings."""
        if self._has_ended.is_set():
            return
        self._is_abandoning = False
        call = LoopCall([lambda: self._close(target)], None, _PrivateClock())
        self._loop.call_soon_threadsafe(self._start, call)
        if not call.done.acquire(timeout=_CLOSE_TIMEOUT_S):
            limit = format_ns(int(_CLOSE_TIMEOUT_S * 1e9))
            _log.warning("stage %s: its tasks and its `close` have not ended within %s", self._label, limit)
        elif call.error is not None:
            _log.warning("stage %s: its `close` failed: %r", self._label, call.error, exc_info=call.error)
        self._has_ended.set()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_JOIN_TIMEOUT_S)
        if not self._thread.is_alive():
            self._loop.close()

    # ------------------------------------------------------------------ on the loop's thread

    def _start(self, call: LoopCall) -> None:
        if self._is_abandoning and call.context is not None:
            call.is_abandoned = True
            call.end(None)
            return
        _current_call.set(call)
        task_context.set(call.context)
        self._calls.add(call)
        call.task = self._loop.create_task(self._finish(call))
        call.task.add_done_callback(call.end)

    async def _finish(self, call: LoopCall) -> None:
        try:
            call.result = await call.made.pop()()  # popped, because it holds the item
        except BaseException as error:  # noqa: BLE001 - the waiting thread raises it
            call.error = error
        self._calls.discard(call)

    def _cancel(self, call: LoopCall) -> None:
        if call.task is not None and not call.task.done():
            call.overdue_since_ns = call.clock.running_since_ns = perf_counter_ns()
            call.task.cancel()

    def _abandon_all(self) -> None:
        for call in self._calls:
            if call.context is not None:
                call.is_abandoned = True
                self._cancel(call)

    async def _close(self, target: Any) -> None:
        own = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not own]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        close = getattr(target, "close", None)
        if callable(close):
            closing = close()
            if inspect.isawaitable(closing):
                await closing
        await self._loop.shutdown_asyncgens()

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, made: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        """Make a task. Its steps count for the item that started it. Also called for the user's tasks."""
        call = _current_call.get()
        return asyncio.Task(made if call is None else self._follow(made, call), loop=loop, **options)

    async def _follow(self, followed: Coroutine[Any, Any, Any], call: LoopCall) -> Any:
        return await self._drive(followed, call)

    @coroutine
    def _drive(self, driven: Coroutine[Any, Any, Any], call: LoopCall) -> Generator[Any, Any, Any]:
        """Await `driven`, and tell the call's clock when its code runs."""
        value = error = None
        while True:
            began_ns = call.clock.running_since_ns = perf_counter_ns()
            self._step = (call, began_ns)
            try:
                awaited = driven.send(value) if error is None else driven.throw(error)
            except StopIteration as stop:
                return stop.value
            finally:
                self._step = None
                call.clock.running_since_ns = call.overdue_since_ns or AWAITING
                if this_process.pid != self._pid:
                    self._end_forked_child(call)
            value = error = None
            try:
                value = yield awaited
            except GeneratorExit:
                driven.close()
                raise
            except BaseException as thrown:  # noqa: BLE001 - the coroutine's own, as with `yield from`
                error = thrown

    def _end_forked_child(self, call: LoopCall) -> None:
        item = "" if call.context is None else f", item {format_key(call.context.item)}"
        end_forked_child(self._pid, f"stage {self._label}{item}", sys.exc_info()[1])

    # ------------------------------------------------------------------ a blocked loop

    def _watch(self) -> None:
        """Warn once about each place that blocks the loop."""
        while not self._has_ended.wait(_CHECK_INTERVAL_S):
            step = self._step
            if step is None or step[0].context is None:
                continue
            blocked_ns = perf_counter_ns() - step[1]
            frame = sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001 - the documented way
            if blocked_ns > _MAX_STEP_NS and frame is not None and self._step is step:
                self._warn(step[0], blocked_ns, _find_own_frame(frame))
            del frame

    def _warn(self, call: LoopCall, blocked_ns: int, frame: FrameType) -> None:
        file, line = frame.f_code.co_filename, frame.f_lineno
        place = f"{file}:{line}"
        if place in self._named_places or call.context is None:
            return
        self._named_places.add(place)
        source = linecache.getline(file, line).strip()
        _log.warning(
            "stage %s, item %s: %s, in %s, has blocked the event loop for %s%s; all other items of the worker wait: "
            "await a call of an async library there, or `await asyncio.to_thread(function, ...)`",
            *(self._label, format_key(call.context.item), place, frame.f_code.co_name, format_ns(blocked_ns)),
            f" (`{source}`)" if source else "",
        )


_STANDARD_LIBRARY_DIR: Final = sysconfig.get_path("stdlib")


def _find_own_frame(frame: FrameType) -> FrameType:
    """Return the innermost frame of the user's code, which is in no library and not in this package."""
    inner: FrameType | None = frame
    while inner is not None:
        file = inner.f_code.co_filename
        is_library = file.startswith((_STANDARD_LIBRARY_DIR, "<frozen")) or "-packages" in file
        if not (is_library or file.startswith(str(PACKAGE_DIR))):
            return inner
        inner = inner.f_back
    return frame


class LoopFunction:
    """Wraps a coroutine function as a function that returns when the coroutine has ended."""

    def __init__(self, loop: StageLoop, function: Callable[..., Any]) -> None:
        """`function` is called on the thread of `loop`."""
        self._loop = loop
        self.__wrapped__ = function

    def __call__(self, *arguments: Any, **keyword_arguments: Any) -> Any:
        """Return the coroutine's result."""
        made: _Box = [partial(self.__wrapped__, *arguments, **keyword_arguments)]
        del arguments, keyword_arguments
        return self._loop.call(made)
