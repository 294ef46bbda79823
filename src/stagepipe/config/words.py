"""The right word for a wrong one: what neighbours call our keys, and what looks alike. Pure tables.

The neighbours: torch's DataLoader, Ray Data, Hydra, jsonargparse, tf.data, WebDataset, SPDL, Kubernetes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from stagepipe.core.targets import nearest

NEIGHBOURS: Final[dict[str, frozenset[str]]] = {
    word: frozenset(others.split())
    for word, others in {
        "workers": "num_workers n_workers nworkers replicas concurrency parallelism processes num_proc"
        " num_parallel_calls max_workers num_replicas instances worker",
        "threads": "num_threads n_threads nthreads omp_num_threads intra_op_threads",
        "uses": "_target_ class_path target type class cls function func fn callable op import module path"
        " use _partial_ init run handler",
        "with": "params args kwargs init_args arguments parameters options config settings",
        "batch": "batch_size batchsize max_batch_size batching",
        "size": "batch_size max_size max_batch_size n count",
        "max_wait": "timeout wait batch_wait_timeout_s max_delay linger",
        "window": "prefetch prefetch_factor queue_size buffer_size buffer queue maxsize in_flight"
        " max_in_flight prefetch_buffer capacity",
        "stages": "steps pipeline transforms ops tasks nodes operators jobs stage",
        "source": "input inputs dataset data reader sources loader",
        "sink": "output outputs writer destination sinks",
        "on_error": "on_failure on_exception error_policy errors ignore_errors handler",
        "cpus": "cpu_affinity affinity cpu cores cpuset cpu_set",
        "device": "gpus gpu num_gpus devices cuda accelerator",
        "name": "id label title rename key",
        "env": "environment env_vars environ",
        "retries": "max_retries retry num_retries attempts",
        "timeout": "timeout_s time_limit deadline",
        "start_timeout": "startup_timeout init_timeout load_timeout ready_timeout",
        "memory": "memory_limit shm_size object_store_memory shared_memory max_memory",
        "vars": "variables defaults constants",
        "extends": "defaults base include inherits _base_ import",
        "order": "ordered preserve_order deterministic in_order",
        "seed": "random_seed manual_seed rng_seed",
        "field": "fields columns column input_columns keys key",
        "as": "as_ format as_type dtype output_format",
        "fuse": "fused inline chain merge",
        "reseed": "seeded worker_init_fn",
        "mutable": "writable writeable copy in_place inplace",
        "max_restarts": "restarts restart_limit max_failures",
        "max_skipped": "max_errors max_errored_blocks skip_limit max_skips",
        "transport": "channel ipc comm",
        "mode": "type kind",
        "threshold": "min_size cutoff threshold_bytes",
        "report": "reports metrics logging monitoring",
        "json": "json_path file path",
        "stateful": "state has_state",
        "engine": "backend executor runner",
    }.items()
}
"""Our word, and what others say for it. What may stand for several is the one that is a key there."""

_OF_DATASET: Final = (
    "a source is one process; of `stagepipe.sources.dataset` the samples are read by a stage: "
    "stages: [{name: dataset, workers: N}]"
)
SPECIAL: Final[dict[tuple[str, str], str]] = {
    ("stages[]", "batch_size"): "write `batch: {size: N}`, or a stage of its own that uses `stagepipe.stages.Batch`",
    ("stages[]", "batchsize"): "write `batch: {size: N}`, or a stage of its own that uses `stagepipe.stages.Batch`",
    ("", "batch_size"): "add a stage: {name: batch, uses: stagepipe.stages.Batch, with: {size: N}}",
    ("", "shuffle"): "add a stage: {name: shuffle, uses: stagepipe.stages.Shuffle, with: {size: N}}",
    ("", "epochs"): "epochs are counted by the training loop, not in the config",
    ("", "workers"): "`workers` belongs to an entry of `stages`",
    ("source", "workers"): _OF_DATASET,
    ("source", "num_workers"): _OF_DATASET,
}
"""Where a single word is not the mend. The first of the pair is the mapping: "" is the top."""

LOADER_WORDS: Final[dict[object, str]] = {
    "batch_size": "add a stage: {name: batch, uses: stagepipe.stages.Batch, with: {size: N}}",
    "drop_last": "add a stage: {name: batch, uses: stagepipe.stages.Batch, with: {size: N, drop_last: true}}",
    "num_workers": "write `stages: [{name: dataset, workers: N}]`",
    "workers": "write `stages: [{name: dataset, workers: N}]`",
    "prefetch_factor": "set the pipeline's `window`, or leave it to `auto`",
    "generator": "set the pipeline's `seed`, or give a `sampler`",
    "timeout": "write `stages: [{name: dataset, timeout: 30s}]`",
    "persistent_workers": "remove it: workers keep what they have loaded",
    "multiprocessing_context": "remove it: workers are started as new processes",
    "worker_init_fn": "remove it: the dataset is built in each worker, and random generators are seeded for each item",
}
"""Arguments of torch's DataLoader that `stagepipe.sources.dataset` does not take, and what to write instead."""


def key_mend(key: str, known: Iterable[str], where: str, elsewhere: Iterable[tuple[str, frozenset[str]]] = ()) -> str:
    """What to write instead of an unknown key. `elsewhere`: other mappings, in words, and their keys.

    >>> key_mend("num_workers", ["workers", "uses"], "stages[]")
    'did you mean `workers`?'
    """
    known = sorted(known)
    if (where, key) in SPECIAL:
        return SPECIAL[where, key]
    folded = key.casefold().replace("-", "_")
    for word, others in NEIGHBOURS.items():
        if word in known and folded in others:
            return f"did you mean `{word}`?"
    near = nearest(key, known)
    if near:
        return f"did you mean `{near}`?"
    meant = {word for word, others in NEIGHBOURS.items() if folded in others} | {key}
    for place, keys in elsewhere:
        for word in sorted(meant & keys):
            return f"`{word}` belongs to {place}"
    return f"known here: {', '.join(known)}"


VALUES: Final[dict[str, tuple[str, ...]]] = {
    "shared_memory": ("shm", "shmem", "sharedmemory", "memfd", "arena"),
    "pipe": ("queue", "socket", "fifo", "pickle"),
    "tensor": ("torch", "pt", "pytorch", "torch.tensor"),
    "numpy": ("np", "ndarray", "array"),
    "pil": ("image", "pillow", "pil.image"),
    "skip": ("ignore", "drop", "continue", "warn"),
    "fail": ("raise", "abort", "stop", "error"),
    "source": ("ordered", "strict", "input", "fifo", "true"),
    "any": ("unordered", "none", "completion", "false"),
    "local": ("multiprocessing", "process", "processes", "default"),
}
"""Values of the keys that take one of a few words, and what others say for them."""


def value_mend(value: object, choices: Iterable[str]) -> str:
    """What to write instead of a word that is not among `choices`.

    >>> value_mend("shm", ["auto", "pipe", "shared_memory"])
    'did you mean `shared_memory`?'
    """
    choices = list(choices)
    folded = str(value).casefold()
    for word in choices:
        if folded in VALUES.get(word, ()):
            return f"did you mean `{word}`?"
    near = nearest(folded, choices)
    return f"did you mean `{near}`?" if near else f"write one of {', '.join(f'`{c}`' for c in choices)}"
