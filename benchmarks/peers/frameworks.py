"""The frameworks: each runs any job, as its own documentation advises. One function each: `run(job, workers)`.

A function takes a job and the number of workers, and yields batches (or items, for a job without batches). A framework
is imported in its own functions, so that it costs the others nothing. Frameworks around torch are in
`frameworks_torch`.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from benchmarks.common.turn import ROOT
from benchmarks.peers.jobs import JOBS, NUMPY_EMPTY, Item, Job, MakeBatch, Process, Samples, list_images, make_steps


def by_hand(job: Job, workers: int) -> Iterator[Item]:
    """Use the layout of `auto`: one pool of workers for steps of one kind, a process for each model, or a dataset."""
    return _iterate(_build_by_hand(job, workers))


def unchanged(job: Job, workers: int) -> Iterator[Item]:
    """The same with functions that do not use `stagepipe.empty`."""
    os.environ[NUMPY_EMPTY] = "1"  # before the workers' server starts
    return by_hand(job, workers)


def auto(job: Job, workers: int) -> Iterator[Item]:  # noqa: ARG001 - it finds out
    """A stage for each step, `workers: auto` and `fuse: auto`: measured at the first run, kept for the next."""
    if job.is_dataset:
        return _iterate(_build_dataset(job, "auto"))
    import stagepipe

    builder: Any = stagepipe.from_source(range(job.count)).map(job.read, workers="auto", fuse="auto")
    for step in job.steps:
        builder = builder.map(_defer(step), workers="auto", fuse="auto")
    return _iterate(builder.batch(job.batch) if job.batch else builder)


def inline(job: Job, workers: int) -> Iterator[Item]:
    """Run all steps in the caller's process, as the documentation advises for samples of a few microseconds."""
    return _iterate(_build_by_hand(job, workers), inline=True)


def _build_by_hand(job: Job, workers: int) -> Any:
    import stagepipe

    if job.is_dataset:
        return _build_dataset(job, workers)
    has_models = all(isinstance(step, type) for step in job.steps)
    builder: Any = stagepipe.from_source(range(job.count)).map(job.read, workers=1 if has_models else workers)
    for step in job.steps:
        builder = builder.map(_defer(step), fuse=not has_models)
    return builder.batch(job.batch) if job.batch else builder


def _build_dataset(job: Job, workers: Any) -> Any:
    import stagepipe

    own: dict[str, Any] = {"batch_size": job.batch, "collate_fn": job.collate} if job.has_own_collate else {}
    builder: Any = stagepipe.from_dataset(Samples(job), workers=workers, **own)
    return builder if own else builder.batch(job.batch)


def _defer(step: Any) -> Any:
    import stagepipe

    return stagepipe.defer(step) if isinstance(step, type) else step


def _iterate(builder: Any, *, inline: bool = False) -> Iterator[Item]:
    import stagepipe

    with stagepipe.Pipeline(builder, inline=inline) as pipeline:
        yield from pipeline


def loop(job: Job, workers: int) -> Iterator[Item]:  # noqa: ARG001 - there is one process
    """Do everything in the caller's process."""
    items = map(Process(job.name), range(job.count))
    if not job.batch:
        yield from items
    while samples := list(islice(items, job.batch)):
        yield job.collate(samples)


def pool(job: Job, workers: int) -> Iterator[Item]:
    """`Pool.imap` of batches or items, in chunks, forked: the default of Linux below Python 3.14."""
    job.prepare()
    work, inputs = _divide(job)
    with multiprocessing.get_context("fork").Pool(workers) as processes:
        yield from processes.imap(work, inputs, job.pool_chunk)


def pool_inheriting(job: Job, workers: int) -> Iterator[Item]:
    """The same with steps that the caller makes before the fork, so that the workers share their pages."""
    make_steps(job.name)
    return pool(job, workers)


def joblib(job: Job, workers: int) -> Iterator[Item]:
    """`Parallel(return_as="generator")` of batches or items on loky, which chooses the chunks (`batch_size="auto"`)."""
    from joblib import Parallel, delayed

    work, inputs = _divide(job)
    process = delayed(work)
    yield from Parallel(n_jobs=workers, return_as="generator")(process(entry) for entry in inputs)


def _divide(job: Job) -> tuple[Callable[[Any], Item], Iterable[Any]]:
    """Return the function that a worker calls, and its inputs: ranges of indices if the job has batches."""
    if not job.batch:
        return Process(job.name), range(job.count)
    return MakeBatch(job.name), job.ranges


_SPDL_BUFFER = 4
_SEGMENTS = 12
_SEGMENT_BYTES = 48 << 20
"""More than the largest batch."""


def spdl_threads(job: Job, workers: int, *, per_batch: bool = False) -> Iterator[Item]:
    """Threads in the caller's process: SPDL's first advice, for work that releases the interpreter."""
    job.prepare()
    pipeline = _describe_spdl(job, workers, per_batch=per_batch).add_sink(_SPDL_BUFFER).build(num_threads=workers + 1)
    with pipeline.auto_stop():
        yield from pipeline


def spdl_threads_per_batch(job: Job, workers: int) -> Iterator[Item]:
    """The same, whose source yields the indices of a batch: one call makes a batch."""
    return spdl_threads(job, workers, per_batch=True)


def spdl_subprocess(job: Job, workers: int, *, per_batch: bool = False) -> Iterator[Item]:
    """Threads in a subprocess, whose arrays come back in a pool of shared memory."""
    from spdl.pipeline import SharedMemorySegmentPool, run_pipeline_in_subprocess

    config = _describe_spdl(job, workers, per_batch=per_batch).add_sink(_SPDL_BUFFER).get_config()
    arena = SharedMemorySegmentPool(_SEGMENT_BYTES, _SEGMENTS)
    yield from run_pipeline_in_subprocess(config, num_threads=workers + 1, arena=arena)


def spdl_subprocess_per_batch(job: Job, workers: int) -> Iterator[Item]:
    """The same, whose source yields the indices of a batch."""
    return spdl_subprocess(job, workers, per_batch=True)


def spdl_processes(job: Job, workers: int) -> Iterator[Item]:
    """A pool of worker processes for all steps and the batch: `to(ProcessPoolExecutorConfig)`."""
    from spdl.pipeline import PipelineBuilder
    from spdl.pipeline.defs import ProcessPoolExecutorConfig

    pool = ProcessPoolExecutorConfig(max_workers=workers, mp_context="spawn")
    builder: Any = PipelineBuilder().add_source(range(job.count)).to(pool, buffer_size=job.batch or 1)
    builder = builder.pipe(Process(job.name))
    if job.batch:
        builder = builder.aggregate(job.batch).pipe(job.collate)
    return _run_to_main(builder, workers)


def spdl_processes_per_batch(job: Job, workers: int) -> Iterator[Item]:
    """Worker processes, each of which makes a whole batch in one call."""
    from spdl.pipeline import PipelineBuilder
    from spdl.pipeline.defs import ProcessPoolExecutorConfig

    pool = ProcessPoolExecutorConfig(max_workers=workers, mp_context="spawn")
    builder: Any = PipelineBuilder().add_source(job.ranges).to(pool, buffer_size=1)
    return _run_to_main(builder.pipe(MakeBatch(job.name), concurrency=workers), workers)


def _run_to_main(builder: Any, workers: int) -> Iterator[Item]:
    from spdl.pipeline.defs import MAIN_PROCESS

    pipeline = builder.to(MAIN_PROCESS, buffer_size=1).add_sink(_SPDL_BUFFER).build(num_threads=workers + 1)
    with pipeline.auto_stop():
        yield from pipeline


def _describe_spdl(job: Job, workers: int, *, per_batch: bool) -> Any:
    from spdl.pipeline import PipelineBuilder

    builder: Any = PipelineBuilder()
    if per_batch:
        return builder.add_source(job.ranges).pipe(MakeBatch(job.name), concurrency=workers)
    builder = builder.add_source(range(job.count)).pipe(Process(job.name), concurrency=workers)
    return builder.aggregate(job.batch).pipe(job.collate) if job.batch else builder


_BUFFER = 4
_READ_THREADS = 2


def grain_processes(job: Job, workers: int) -> Iterator[Item]:
    """Worker processes, which also make the batches."""
    import grain
    from absl import flags

    if not flags.FLAGS.is_parsed():  # grain's workers read absl's flags, which its documentation leaves to `app.run`
        flags.FLAGS(["peers"])
    job.prepare()
    dataset: Any = grain.MapDataset.source(range(job.count)).map(Process(job.name))
    if job.batch:
        dataset = dataset.batch(job.batch, **({"batch_fn": job.collate} if job.has_own_collate else {}))
    # As documented: no threads for data in memory. An element is a batch, so only a few should be read ahead.
    threads = _READ_THREADS if job.reads_files else 0
    reading = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=_BUFFER if threads else 0)
    options = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=_BUFFER)
    return iter(dataset.to_iter_dataset(reading).mp_prefetch(options))


_STORE_BYTES = 2 << 30
_BLOCK_ROWS = 512
_WRITER_BLOCK_ROWS = 64
"""For `thumbnails`: a tenth of a second's work."""
_ACTOR_BLOCK_ROWS = 16
"""A block goes from actor to actor as a whole: 512 rows of `models` would take a minute until the first one arrives."""


def ray_data(job: Job, workers: int) -> Iterator[Item]:
    """Run all steps in tasks; in a pool of actors if one step is a class; in an actor for each step if all are classes.

    `iter_batches` collates.
    """
    import ray

    os.environ["RAY_DATA_DISABLE_PROGRESS_BARS"] = "1"
    ray.init(
        num_cpus=workers,
        ignore_reinit_error=True,
        object_store_memory=_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    kinds = {isinstance(step, type) for step in job.steps}
    rows = _BLOCK_ROWS if kinds <= {False} else _ACTOR_BLOCK_ROWS if kinds == {True} else _WRITER_BLOCK_ROWS
    dataset: Any = ray.data.range(job.count, override_num_blocks=max(workers * 8, job.count // rows))
    if kinds == {True}:
        share = workers / (len(job.steps) + 2)  # reading and an actor for each model share the CPUs
        dataset = dataset.map(_Read(job.name), num_cpus=share)
        for number in range(len(job.steps)):
            dataset = dataset.map(_Take, fn_constructor_args=(job.name, number), concurrency=1, num_cpus=share)
    elif True in kinds:
        share = (workers - 1) / workers  # an actor for each CPU; a task that makes the range needs a whole one
        dataset = dataset.map(_Whole, fn_constructor_args=(job.name,), concurrency=workers, num_cpus=share)
    else:
        dataset = dataset.map(_Whole(job.name))
    if not job.batch:
        yield from dataset.iter_rows()
        return
    for batch in dataset.iter_batches(batch_size=job.batch, prefetch_batches=4, batch_format="numpy"):
        yield _pad(job, batch)


def _pad(job: Job, batch: Item) -> Item:
    if not job.has_own_collate:
        return batch
    return job.collate([dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True)])


class _Read:
    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, row: dict[str, Any]) -> Item:
        return JOBS[self._name].read(int(row["id"]))


class _Whole:
    def __init__(self, name: str) -> None:
        self._process = Process(name)

    def __call__(self, row: dict[str, Any]) -> Item:
        sample = self._process(int(row["id"]))
        return {key: value.numpy() if hasattr(value, "numpy") else value for key, value in sample.items()}


class _Take:
    def __init__(self, name: str, number: int) -> None:
        step = JOBS[name].steps[number]
        self._step = step() if isinstance(step, type) else step

    def __call__(self, row: Item) -> Item:
        taken: Item = self._step(row)
        return taken


def cosmos_xenna(job: Job, workers: int) -> Iterator[Item]:
    """Use a pool of workers for all steps, or one for each model. Its service mode hands results to the caller.

    In the other modes, results come at the end of the run. Its loop takes about 25 inputs per second from the queue, so
    they are sent in lists.
    """
    start_xenna_ray(workers)
    import cosmos_xenna.pipelines.v1 as xenna

    has_models = all(isinstance(step, type) for step in job.steps)

    class Worker(xenna.Stage):  # type: ignore[misc]
        """Does all work on a batch or an item, or the work of one model; the first worker also reads."""

        def __init__(self, number: int) -> None:
            self._number = number

        @property
        def required_resources(self) -> Any:
            return xenna.Resources(cpus=workers / (len(job.steps) + 1) if has_models else 1.0)

        def setup(self, worker_metadata: Any) -> None:  # noqa: ARG002 - its interface
            self._work = _make_work(job, self._number if has_models else None)

        def process_data(self, in_data: list[list[Any]]) -> list[list[Item]]:
            return [list(map(self._work, entry)) for entry in in_data]

    stages = [Worker(number) for number in range(len(job.steps) if has_models else 1)]
    inputs: list[Any] = list(job.ranges if job.batch else range(job.count))
    lists = [inputs[begin : begin + job.pool_chunk] for begin in range(0, len(inputs), job.pool_chunk)]
    queues = xenna.ServingQueues(multiprocessing.Queue(), multiprocessing.Queue(_BUFFER))
    config = xenna.PipelineConfig(execution_mode=xenna.ExecutionMode.SERVING, cpu_allocation_percentage=1.0)
    spec = xenna.PipelineSpec([], stages, config=config, serving_queues=queues)
    run = threading.Thread(target=xenna.run_pipeline, args=(spec,), daemon=True)
    run.start()
    for entry in lists:
        queues.source.put(entry)
    for _ in lists:
        yield from queues.sink.get()
    queues.source.put(None)  # ends it at once, and drops the items in flight
    run.join()


def start_xenna_ray(cpus: int, store_bytes: int = _STORE_BYTES) -> None:
    """Start a Ray for cosmos-xenna, which lists more actors at once through the dashboard than Ray's default allows."""
    os.environ |= dict.fromkeys(("RAY_MAX_LIMIT_FROM_API_SERVER", "RAY_MAX_LIMIT_FROM_DATA_SOURCE"), "40000")
    os.environ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"] = "1"
    import ray

    ray.init(
        num_cpus=cpus,
        ignore_reinit_error=True,
        object_store_memory=store_bytes,
        include_dashboard=True,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT), "TMPDIR": tempfile.gettempdir()}},
    )


def daft(job: Job, workers: int) -> Iterator[Item]:
    """Use a class whose method makes the batch or the item of a row, in several processes; one process for each model.

    Rows are Python objects, because Daft's own image functions make different pixels.
    """
    import daft as package

    tool: Any = package

    class Worker:
        """Does all work on a row, or the work of one model."""

        def __init__(self, model: int | None) -> None:
            self._inputs = job.ranges if job.batch else range(job.count)
            self._work = _make_work(job, model)
            self._is_first = not model

        @tool.method(return_dtype=tool.DataType.python())  # type: ignore[untyped-decorator]
        def take(self, row: Any) -> Any:
            return self._work(self._inputs[row] if self._is_first else row)

    has_models = all(isinstance(step, type) for step in job.steps)
    pool = tool.cls(use_process=True, max_concurrency=1 if has_models else workers)(Worker)
    rows: Any = tool.range(len(job.ranges) if job.batch else job.count).into_batches(job.pool_chunk)
    rows = rows.select(tool.col("id").alias("row"))
    for model in range(len(job.steps)) if has_models else [None]:
        rows = rows.select(pool(model).take(tool.col("row")).alias("row"))
    for row in rows.iter_rows():
        yield row["row"]


def _make_work(job: Job, model: int | None) -> Callable[[Any], Item]:
    """Return the function of a worker: all work on a batch or an item, or one model's. The first worker also reads."""
    if model is None:
        return _divide(job)[0]
    step = job.steps[model]()
    return step if model else lambda index: step(job.read(index))


def own_decoder(job: Job, workers: int) -> Iterator[Item]:
    """Read, decode and resize with TensorFlow's operations, in its threads. The pixels differ from the others'."""
    import tensorflow as tf

    def load(index: Any, path: Any) -> dict[str, Any]:
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        image = tf.image.resize(image, (224, 224), method="bilinear", antialias=True)
        return {"index": index, "image": tf.transpose(image / 255.0, (2, 0, 1))}

    tf.config.set_visible_devices([], "GPU")
    paths = [str(path) for path in list_images()]
    files = tf.data.Dataset.from_tensor_slices(paths).repeat().take(job.count).enumerate()
    dataset = files.map(load, num_parallel_calls=workers).batch(job.batch).prefetch(4)
    return dataset.as_numpy_iterator()  # type: ignore[no-any-return]
