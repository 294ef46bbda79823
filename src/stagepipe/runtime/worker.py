"""The worker process: built from its launch, it obeys seeks and steps its role until it is told to stop."""

from __future__ import annotations

import math
import sys
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np

from stagepipe.core import ArenaFullError, UsageError, current
from stagepipe.plan import Role, StagePlan
from stagepipe.runtime.control import Control
from stagepipe.runtime.failures import message_of, read_only_mend, trace_of
from stagepipe.runtime.gate import Gate, Meter, Stretch
from stagepipe.runtime.launch import Launch
from stagepipe.runtime.letters import Postbox
from stagepipe.runtime.manners import Manners
from stagepipe.runtime.messages import Failed, Full, Leases, Ready, Seek, decode_command
from stagepipe.runtime.older import Older
from stagepipe.runtime.ordering import Ends, OrderRole
from stagepipe.runtime.outlet import HopOut, Surroundings, TurnedError
from stagepipe.runtime.probing import Probe, ProbedOut, refuse_what_is_read_once
from stagepipe.runtime.reading import READ_ONCE, SourceReader
from stagepipe.runtime.roles import SourceRole, StageRole
from stagepipe.runtime.stage import Stage, StageError, key_text
from stagepipe.runtime.tally import Tally
from stagepipe.runtime.unordered import order_role
from stagepipe.timing import Board, State, Word
from stagepipe.transport import Arena, Bell, Memory, Policy, Receiver, Sender

_FLUSH_NS = 100_000_000
_WAIT_S = 0.25
_FEW = 4
"""Leases more than before that are worth a look at how much they hold."""
Roles = SourceRole | StageRole | OrderRole


class Worker:
    """One worker. Everything runs on the main thread, but for the control thread's ear."""

    def __init__(self, launch: Launch, control: Control) -> None:
        """Map what was inherited; the stages are built by `build`."""
        self._launch, self._control = launch, control
        self._board = Board(launch.board_fd, launch.layout)
        self._region = self._board.region(launch.number)
        self._region[Word.STARTED_NS] = self._region[Word.STARTED_NS] or launch.started_ns
        arena = Arena(launch.number, launch.arena_fds[launch.number], launch.memory_bytes, launch.era)
        self._memory = Memory(arena, dict(launch.arena_fds), dict(launch.return_fds), limit=launch.memory_bytes)
        self._memory.publish_live = partial(self._publish, Word.LIVE_BYTES)
        self._memory.publish_largest = partial(self._publish, Word.LARGEST_BYTES)
        region = self._region
        tally = self._tally = Tally(region, self._memory, keep_pages=launch.keep_pages)
        policy = self._policy = Policy(
            launch.outbound.threshold_bytes,
            force_shared=launch.outbound.mode == "shared_memory",
            large_in_pipe=launch.outbound.large_in_pipe,
            pipe_only=launch.outbound.mode == "pipe" and not launch.outbound.large_in_pipe,
            live=self._board.rule(launch.group),
        )
        self._sender = Sender(
            launch.out_fd, self._memory, policy, control.bell, self.interrupted, tally.sent, self._tick
        )
        tally.go_on(self._sender)
        self._receiver: Receiver | None = None
        self._meter: Meter | None = None
        self._stages: list[Stage] = []
        self._generation = self._void_generation = 0
        self._manners = Manners(self._board)
        self._older = Older(self._memory, launch.era, self._tell_leases)
        self._flushed_ns, self._many = 0, _FEW
        self._building = launch.plan.stages[0].name

    # ------------------------------------------------------------------ waits

    def interrupted(self) -> bool:
        """Whether the work in hand is void: a seek, or the end."""
        return self._control.stopping or self._board.generation != self._generation

    def _tick(self) -> None:
        """Run at every tick of every wait: what is idle time's business."""
        self._memory.flush()
        if self._meter is not None:
            self._meter.flush()
        now = self._region[Word.TICK_NS] = perf_counter_ns()
        if now - self._flushed_ns > _FLUSH_NS:
            self._flush(now)

    def _gate_tick(self) -> None:
        self._tick()
        self._memory.collect()  # what is given back makes room

    def _wait(self) -> None:
        """A short wait that a seek or the end cuts off, counted as waiting for input."""
        begin = perf_counter_ns()
        self._tick()
        self._control.wait(_WAIT_S)
        self._tally.idle_ns += perf_counter_ns() - begin

    # ------------------------------------------------------------------ building

    def build(self) -> Roles:
        """Build the stages and the role that runs them."""
        launch = self._launch
        plan = launch.plan
        self._stages = [self._stage(number, stage) for number, stage in enumerate(plan.stages)]
        self._tally.stages = self._stages
        _limit_late_threads(plan.threads or 1)
        out = self._way_out()
        around = Surroundings(self._region, self.interrupted, self._wait, launch.stages)
        current.allocate = self._allocate
        if launch.in_fd is None:
            reader = SourceReader(self._stages[0].target, launch.seed, launch.limit, launch.shard)
            if launch.life and reader.once:
                raise UsageError(READ_ONCE)
            return SourceRole(reader, self._stages, out, self._gate(plan.feeds), around)
        receiver = self._receiver = self._tally.receiver = self._receiver_of(
            launch.in_fd, private=plan.stages[0].mutable
        )
        for stage in self._stages:
            stage.queue_ns = lambda: receiver.queue_ns
        if plan.role is Role.STAGE:
            return StageRole(self._stages, out, receiver, around)
        self._meter = Meter(self._board, plan.reads, Bell(launch.bell_fds[plan.reads]))
        ends = Ends(receiver, self._meter, self._gate(plan.feeds), plan.reads)
        return order_role(launch.any_order, plan.reads)(self._stages, out, ends, around)

    def _way_out(self) -> HopOut:
        launch = self._launch
        if not launch.probe:
            postbox = Postbox(launch.number, launch.worker, launch.plan.name, (launch.shard, launch.any_order))
            return HopOut(self._sender, launch.plan.feeds, partial(postbox.send, self._control.send))
        if launch.in_fd is None:
            refuse_what_is_read_once(self._stages[0].target, launch.number, self._control)
        return ProbedOut(self._sender, Probe(launch.number, self._memory, self._policy.small_bytes, self._control))

    def _receiver_of(self, fd: int, *, private: bool) -> Receiver:
        return Receiver(
            fd,
            self._memory,
            self._control.bell,
            self.interrupted,
            self._tally.received,
            self._tick,
            private=private,
            readonly=not private,
        )

    def _stage(self, number: int, plan: StagePlan) -> Stage:
        self._building = plan.name
        launch = self._launch
        shard = launch.shard.of(launch.plan.feeds if number else launch.plan.reads)
        stage = Stage(plan, launch.worker, launch.seed, launch.config_dir, self._region.stage(number), shard)
        if number or launch.plan.role is Role.STAGE:
            _ = stage.function
        return stage

    def _gate(self, stretch: int) -> Gate:
        bell = Bell(self._launch.bell_fds[stretch])
        launch = self._launch
        ends = Stretch(stretch, launch.fed, launch.memory_bytes)
        gate = Gate(self._board, ends, (bell, self._control.bell), self._gate_tick)
        self._tally.gate = gate
        return gate

    def _allocate(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """`stagepipe.empty` in this process; None where a plain allocation serves as well."""
        tensor = type(dtype).__module__ == "torch"
        kind = dtype if tensor else np.dtype(dtype)
        nbytes = math.prod(shape, start=kind.itemsize)
        outbound = self._launch.outbound
        if nbytes < outbound.threshold_bytes or outbound.mode == "pipe" or (not tensor and kind.hasobject):
            return None
        lease = self._memory.loan(nbytes)
        if not tensor:
            return np.ndarray(shape, dtype, lease)
        import torch

        return torch.frombuffer(lease, dtype=dtype).reshape(shape)

    # ------------------------------------------------------------------ the loop

    def run(self) -> None:
        """Until told to stop."""
        try:
            role = self.build()
        except BaseException as error:  # noqa: BLE001 - what a stage's module or class raises is the user's to see
            self._report_build(error)
            self._await_stop()
            return
        self._tell_ready(role)
        while not self._control.stopping:
            try:
                if not self._entered(role):
                    self._wait()
                    continue
                while not self.interrupted():
                    role.step()
                    now = perf_counter_ns()
                    if now - self._flushed_ns > _FLUSH_NS or self._memory.leased > self._many:
                        self._flush(now)
            except TurnedError:
                pass
            except ArenaFullError as error:
                self._report_full(error)
                self._void_generation = self._generation  # nothing more until the seek that this asks for
            except StageError as error:
                mend = read_only_mend(error.cause, self._stages[0].name)
                self._report(error.stage, key_text(error.key), f"{error}{mend}", error.trace)
                self._void_generation = self._generation
            except Exception as error:  # noqa: BLE001 - the transport's own, or an item that cannot travel
                self._report_item(error)
                self._void_generation = self._generation
            self._region.at(())

    def _tell_ready(self, role: Roles) -> None:
        now, launch, region = perf_counter_ns(), self._launch, self._region
        if launch.life:
            region[Word.RESTARTING_NS] += now - launch.started_ns
        else:
            region[Word.READY_NS] = now
        region[Word.STATE] = State.STARVED
        total = role.total if isinstance(role, SourceRole) else None
        self._control.send(Ready(launch.number, launch.life, [stage.yields for stage in self._stages], total))

    def _entered(self, role: Roles) -> bool:
        """Enter the generation in force; False while its seek is not known yet."""
        generation = self._board.generation
        if generation != self._generation:
            self._look_for_seek(generation)
        told = self._control.told
        # A successor waits for the seek that mends the death before it: in an older era its blocks would be others'.
        if told is not None and told.generation > self._generation and told.era >= self._older.era:
            self._generation = told.generation
            self._region.at(())
            is_new = self._older.enter(told.era)
            for stage in self._stages:
                if told.anew and stage.plan.stateful:
                    stage.renew()
                stage.enter(told.epoch)
            role.enter(told)
            if is_new or self._launch.life:
                self._older.name()
        return self._void_generation < self._generation == self._board.generation

    def _tell_leases(self, era: int, leases: list[tuple[int, int, int]]) -> None:
        self._control.send(Leases(self._launch.number, era, leases))

    def _look_for_seek(self, generation: int) -> None:
        data = self._board.seek(generation)
        seek = None if data is None else decode_command(data)
        if isinstance(seek, Seek):
            self._control.learn(seek)

    def _await_stop(self) -> None:
        self._flush(perf_counter_ns())
        while not self._control.stopping:
            self._control.wait(_WAIT_S)

    # ------------------------------------------------------------------ events

    def _report(self, stage: str, item: str, error: str, trace: str) -> None:
        launch = self._launch
        self._control.send(Failed(launch.number, stage, launch.worker, item, error, trace, self._generation))

    def _report_build(self, error: BaseException) -> None:
        self._report(self._building, "", f"cannot be built: {message_of(error)}", trace_of(error))

    def _at_item(self) -> str:
        at = self._region[Word.AT_ITEM]
        return str(self._launch.shard.number(at - 1)) if at else ""

    def _report_item(self, error: Exception) -> None:
        self._report(self._stages[-1].name, self._at_item(), message_of(error), trace_of(error))

    def _report_full(self, error: ArenaFullError) -> None:
        self._control.send(
            Full(
                self._launch.number,
                self._stages[-1].name,
                self._launch.worker,
                self._at_item(),
                self._generation,
                str(error),
                self._memory.held_bytes(),  # the frames of what failed still hold their arrays
            )
        )

    # ------------------------------------------------------------------ counters

    def _flush(self, now: int) -> None:
        """Bring everything to the board, and look after what lasts."""
        self._flushed_ns = now
        self._tally.flush(now)
        self._manners.look(now)
        self._older.look()
        self._look_at_held()

    def _look_at_held(self) -> None:
        """A stage that keeps its inputs gets copies from some point on, so that shared memory is left to work with."""
        leased, launch = self._memory.leased, self._launch
        self._many = leased + max(leased // 4, _FEW)  # to look takes time for each lease
        held = self._region[Word.HELD_BYTES] = self._memory.held_bytes()
        if self._receiver is not None:
            self._receiver.private = held > launch.memory_bytes // 3 or launch.plan.stages[0].mutable

    def _publish(self, word: Word, nbytes: int) -> None:
        self._region[word] = nbytes

    def close(self) -> None:
        """The last words on the board."""
        self._flush(perf_counter_ns())
        self._region[Word.STATE] = State.STOPPED
        self._region[Word.STOPPED_NS] = perf_counter_ns()


def _limit_late_threads(threads: int) -> None:
    """For libraries that do not go by the environment. OpenCV starts as many threads as there are processors."""
    cv2 = sys.modules.get("cv2")
    if cv2 is not None:
        cv2.setNumThreads(threads)
