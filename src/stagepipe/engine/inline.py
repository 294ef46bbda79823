"""The inline engine: all stages in the calling process, in order, without transport.

For pdb, for notebooks, for systems other than Linux, and as the oracle of the tests: what it yields is what every other
engine must yield. It uses the workers' own stages, chains and order points' groupings; only the hops are calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any, Self

from stagepipe.core import Cursor, Key, RunError
from stagepipe.engine.rate import Rate
from stagepipe.plan import Plan, ProcessPlan, Role
from stagepipe.report import Progress
from stagepipe.runtime.chain import Box, Chain, Head
from stagepipe.runtime.failures import message_of, trace_of
from stagepipe.runtime.feeding import Feed
from stagepipe.runtime.letters import Letters, Postbox
from stagepipe.runtime.reading import SourceReader
from stagepipe.runtime.said import Said, pack_said, unpack_said
from stagepipe.runtime.stage import Stage, StageError, key_text, private_region
from stagepipe.runtime.yields import Yields, items_after

Post = Callable[[Stage, Key, StageError, bytes], None]


class _Yielded:
    """The end of the chain: what is ready to be yielded, as (value, samples)."""

    def __init__(self, post: Post) -> None:
        self.ready: deque[tuple[Any, int]] = deque()
        self.post = post

    def item(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        del key, meta
        self.ready.append((box.pop(), samples))

    def dropped(self, key: Key, samples: int, meta: bytes) -> None:
        pass

    def skipped(self, stage: Stage, key: Key, error: StageError | None, head: Head) -> None:
        if error is not None:
            self.post(stage, key, error, head[1])

    def close(self, key: Key, count: int, meta: bytes) -> None:
        pass

    def finish(self) -> None:
        pass

    def enter(self, epoch: int) -> None:
        del epoch
        self.ready.clear()  # one that was broken off may have left some


class _StageProcess(_Yielded):
    """A stage process as a call. With `batch`, items are kept until there are enough."""

    def __init__(self, stages: list[Stage], following: _Yielded) -> None:
        super().__init__(following.post)
        self._stages, self._chain, self._following = stages, Chain(stages, following), following
        self._batch = stages[0].plan.batch if stages else None
        self._kept: list[tuple[Key, Any, Head]] = []

    def enter(self, epoch: int) -> None:
        self._kept.clear()
        for stage in self._stages:
            stage.enter(epoch)
        self._following.enter(epoch)

    def item(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        if self._batch is None:
            self._chain.push(key, box, samples, meta)
            return
        self._kept.append((key, box.pop(), (samples, meta)))
        if len(self._kept) == self._batch.size:
            self._run_batch()

    def _run_batch(self) -> None:
        kept, self._kept = self._kept, []
        if kept:
            self._chain.push_many([k for k, _, _ in kept], [v for _, v, _ in kept], [head for _, _, head in kept])

    def finish(self) -> None:
        self._run_batch()
        self._following.finish()


class _OrderProcess(_Yielded):
    """An order point as a call: what comes is in order already; only the numbering begins anew."""

    def __init__(self, stages: list[Stage], following: _Yielded) -> None:
        super().__init__(following.post)
        self._stage, self._chain, self._following = stages[0], Chain(stages[1:], following), following
        self._stages = stages
        self._number = 0
        self._begins: Key | None = None
        self._last: Key | None = None
        self._made_of: list[tuple[int, int]] = []

    def enter(self, epoch: int) -> None:
        self._number, self._begins, self._last = 0, None, None
        self._made_of.clear()
        self._stage.target.clear()
        for stage in self._stages:
            stage.enter(epoch)
        self._following.enter(epoch)

    def item(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        said = unpack_said(meta)
        self._made_of.append((said.begin, said.end) if meta else (key[0], key[0] + 1))
        full = self._stage.timed(key, lambda: self._stage.target.add(box.pop(), samples))
        self._stage.count(key)
        self._last = key
        if full:
            self._give(self._stage.target.flush)

    def _give(self, outputs_of: Any) -> None:
        begins, self._begins = self._begins, self._last
        key = (begins or (0,))[:1]
        rng = self._stage.random(key[0], begins)
        made_of, self._made_of = self._made_of, []
        meta = pack_said(Said(Cursor(), made_of[0][0], made_of[-1][1])) if made_of else b""
        for value, samples in self._stage.timed(key, lambda: outputs_of(rng)):
            self._chain.push((self._number,), [value], samples, meta)
            self._number += 1

    def finish(self) -> None:
        self._give(self._stage.target.finish)
        self._following.finish()


class InlineRun:
    """A run in this process, with the same face as a local one."""

    def __init__(self, plan: Plan) -> None:
        """Build all stages."""
        self.plan = plan
        self._begun_ns = perf_counter_ns()
        self._read = 0
        self.letters = Letters(plan, lambda: self._read)
        self._postbox = Postbox(0, 0, plan.processes[0].name, (plan.shard, False))
        self._out = _Yielded(self._post)
        self.items = self.samples = 0
        following: _Yielded = self._out
        self._yields: list[Yields] = []
        for process in reversed(plan.processes[1:]):
            stages = self._built(process)
            self._yields = [*(stage.yields for stage in stages), *self._yields]
            kind = _OrderProcess if process.role is Role.ORDER_POINT else _StageProcess
            following = kind(stages, following)
        source, *fused = self._built(plan.processes[0])
        self._yields = [*(stage.yields for stage in fused), *self._yields]
        self._stages = [source, *fused]
        self._following = following
        self._reader = SourceReader(source.target, plan.seed, plan.limit, plan.shard)
        self._feed = Feed(self._reader, self._stages, following)
        self._samples_rate, self._items_rate = Rate(), Rate()

    def _built(self, process: ProcessPlan) -> list[Stage]:
        plan = self.plan
        stages: list[Stage] = []
        for stage in process.stages:
            shard = plan.shard.of(process.feeds if stages else process.reads)
            try:
                stages.append(Stage(stage, 0, plan.seed, plan.config_dir, private_region(), shard))
            except (Exception, SystemExit) as error:
                message = f"stage {stage.name}, worker 0: cannot be built: {message_of(error)}"
                raise RunError(message, stage=stage.name, worker=0, trace=trace_of(error)) from error
        return stages

    def epoch(self, epoch: int) -> Iterator[Any]:
        """The items of an epoch, in order."""
        try:
            yield from self._epoch(epoch)
        except StageError as error:
            message = f"stage {error.stage}, worker 0, item {key_text(error.key)}: {error}"
            raise RunError(
                message, stage=error.stage, worker=0, item=key_text(error.key), trace=error.trace
            ) from error.cause

    def _epoch(self, epoch: int) -> Iterator[Any]:
        for stage in self._stages:
            stage.enter(epoch)
        self._following.enter(epoch)
        self.letters.seek(0, epoch, [Cursor()] * len(self.plan.stretches), ())
        self._feed.enter(epoch, 0)
        at = 0
        while self._feed.step(at):
            at += 1
            self._read += 1
            yield from self._ready()
        self._following.finish()
        yield from self._ready()
        self.letters.judge()

    def _post(self, stage: Stage, key: Key, error: StageError, meta: bytes) -> None:
        self.letters.take(self._postbox.letter(stage, key, error, meta, 0))
        beyond = self.letters.beyond()
        if beyond is not None:
            raise beyond

    def length(self) -> int | None:
        """How many items an epoch gives; None where that is not known."""
        return items_after(self._reader.total, self._yields)

    def _ready(self) -> Iterator[Any]:
        while self._out.ready:
            value, samples = self._out.ready.popleft()
            self.items += 1
            self.samples += samples
            yield value

    def progress(self) -> Progress:
        """Where the run stands."""
        now = perf_counter_ns()
        return Progress(
            elapsed_ns=now - self._begun_ns,
            items_in=self._read,
            items_total=self._reader.total,
            items_out=self.items,
            samples_out=self.samples,
            samples_per_s=self._samples_rate.per_s(now, self.samples),
            starting=(),
            busiest="",
            items_per_s=self._items_rate.per_s(now, self._read),
        )

    def close(self) -> None:
        """There is nothing to end."""

    def __enter__(self) -> Self:
        """The run itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to end."""
