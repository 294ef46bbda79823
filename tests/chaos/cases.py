"""A chaos case: a random pipeline, its epochs and its disturbances. Plain values, drawn from a seed.

`tests.properties` draws its pipelines here too, but small ones.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from stagepipe.testing.crash_points import CRASH_POINTS
from tests.support.pipelines import pipeline, stage

STAGES = "tests.chaos.stages"
Case = dict[str, Any]
_LIBRARY_SHARE = 0.01
"""Of the stages, those that import torch or albumentations, which takes seconds."""
_CONDITION_SHARE = 0.3
"""Of the stages that items may pass by, those that some do."""
_THREADS_SHARE = 0.3
"""Of the stages that may have several items in progress in a worker, those that do."""
_DATASET_SHARE = 0.2
"""Of the cases, those whose source is a dataset: its tiny samples travel in chunks to a `Batch`."""


class StageKinds(NamedTuple):
    """The stages to choose from: without arguments, and with a `salt`; and whether some change their input in place."""

    plain: tuple[str, ...]
    salted: tuple[str, ...]
    in_place: bool = False


_SAME_STRUCTURE = ("same", "slow", "Keeping", "changed", "dropped", "flaky", "failing", "listed", "in_place")
"""Stages that leave the structure of an item as it is: a `Batch` can follow where some items pass them by."""

_WITH_THREADS = {
    **{name: name for name in ("number", "small", "text", "arrays", "image", "loaned", *_SAME_STRUCTURE)},
    **{name: name for name in ("nested", "borrowed", "parts", "hanging")},
    "drawn": "context_drawn",
    "drawn_parts": "context_parts",
}
"""Stages, and what they become with threads: only the item's own generator is seeded there."""

_WITH_TASKS = {"same": "same_task", "slow": "slow_task", "context_drawn": "drawn_task"}


_STAGES = StageKinds(
    ("same", "slow", "nested", "drawn", "Keeping", "drawn_parts", "OwnGenerators"),
    ("changed", "borrowed", "dropped", "parts", "flaky", "flaky_draws", "failing", "hanging"),
    in_place=True,
)
_SMALL_STAGES = StageKinds(
    ("drawn", "Keeping", "drawn_parts", "drawn_parts", "OwnGenerators"),
    ("dropped", "parts", "flaky", "flaky_draws", "failing"),
)


def make_case(seed: int, *, kills: bool = True) -> Case:
    """Return the case of a seed. Without `kills` no worker dies, but workers are stopped and stages fail."""
    rnd = random.Random(seed)
    order = rnd.choices(["source", "any"], [5, 1])[0]
    batchable = order == "source" and rnd.random() < 0.5
    stages = _make_stages(rnd, batchable=batchable)
    stages, mode = _choose_transport(rnd, stages)
    source = _make_source(rnd)
    if _has_dataset("", seed):
        count = rnd.choice([0, 1, rnd.randint(2, 3000), rnd.randint(2, 3000)])
        order, source = "source", _make_dataset(rnd, count)
        stages = _batch_dataset(rnd, source)
        mode = "auto" if mode == "pipe" else mode  # a batch may be too large for a pipe between several workers
    stages = add_threads(add_conditions(stages, random.Random(f"when {seed}")), random.Random(f"threads {seed}"))
    stages = add_tasks(stages, random.Random(f"tasks {seed}"))
    config = {
        **pipeline(*stages, source=source),
        "seed": rnd.randrange(100),
        "order": order,
        "window": rnd.choice(["auto", "auto", 1, 2, rnd.randint(3, 30)]),
        "memory": rnd.choice(["128MiB", "256MiB", "1GiB"]),
        "transport": {"mode": mode},
        "max_restarts": 1000,
    }
    epochs = [rnd.choice([None, None, rnd.random()]) for _ in range(rnd.randint(1, 3))]
    resume = rnd.randrange(len(epochs)) if rnd.random() < 0.4 else None
    case = {
        "seed": seed,
        "config": config,
        "message_items": draw_message_items(seed),
        "epochs": epochs,
        "resume": resume,
    }
    return {**case, "disturbances": _make_disturbances(rnd, get_process_names(case), kills=kills)}


def make_kill_case(seed: int) -> Case:
    """Return a case with many kills: a short chain with many items, half of the time in any order and with small items.

    A worker dies by SIGKILL from outside, alone or with others, or at a crash point, also the successor of one that
    died there. All kills hit the first moments of recovery too.
    """
    rnd = random.Random(f"kills {seed}")
    order = rnd.choice(["source", "any"])
    batchable = order == "source" and rnd.random() < 0.4
    payload = "small" if rnd.random() < 0.5 else ""
    stages = _make_stages(rnd, batchable=batchable, max_stages=3, payload=payload)
    for entry in stages:
        if entry["uses"].endswith((".flaky", ".flaky_draws", ".failing")):
            entry["retries"] = 20  # several workers may be killed while they have the item
    stages, mode = _choose_transport(rnd, stages)
    source = _make_source(rnd, rnd.randint(200, 1200))
    if _has_dataset("kills", seed):
        order, source = "source", _make_dataset(rnd, rnd.randint(1000, 6000), "dropped")
        stages = _batch_dataset(rnd, source)
        mode = "auto" if mode == "pipe" else mode  # a batch may be too large for a pipe between several workers
    stages = add_conditions(stages, random.Random(f"when kills {seed}"))
    stages = add_threads(stages, random.Random(f"threads kills {seed}"))
    stages = add_tasks(stages, random.Random(f"tasks kills {seed}"))
    config = {
        **pipeline(*stages, source=source),
        "seed": rnd.randrange(100),
        "order": order,
        "window": rnd.choice(["auto", "auto", 2, rnd.randint(3, 30)]),
        "memory": "256MiB",
        "transport": {"mode": mode},
        "max_restarts": 1000,
    }
    epochs = [rnd.choice([None, rnd.uniform(0.3, 0.9)]) for _ in range(rnd.randint(0, 1))]
    message_items = draw_message_items(seed)
    case = {"seed": seed, "config": config, "message_items": message_items, "epochs": epochs, "resume": None}
    return {**case, "disturbances": _make_many_kills(rnd, get_process_names(case))}


def make_change_case(seed: int) -> Case:
    """Return a case in which workers come and go: a kill case of fewer items and kills, at times with a resume.

    The resumed run has another history of changes, or none. `pause_s`: the consumer's, after each item;
    it holds `held_items` of them, whose memory must not change.
    """
    rnd = random.Random(f"changes {seed}")
    case = make_kill_case(seed)
    config, disturbances = case["config"], case["disturbances"]
    arguments = config["source"]["with"]
    count = rnd.randint(20, 250)
    if "dataset" in arguments:
        arguments["with"]["count"] = 4 * count
    else:
        arguments["count"] = count
    for entry in config["stages"]:
        if entry["uses"].endswith((".torch_drawn", ".Augmented")):  # each start would take seconds
            entry["uses"] = f"{STAGES}.drawn"
    if not config["stages"][0].get("uses", "").endswith(".number"):  # an item must fit a packet that several may write
        config["transport"] = {"mode": rnd.choice(["auto", "shared_memory"])}
    epochs = [rnd.choice([None, rnd.uniform(0.2, 0.9)]) for _ in range(rnd.randint(0, 1))]
    is_resumed = epochs and rnd.random() < 0.7

    def draw_changes() -> dict[str, Any]:
        return {
            "seed": rnd.randrange(1 << 30),
            "most_workers": rnd.randint(2, 4),
            "max_kills": rnd.choice([0, 1, 2, 3]),
            "pause_s": round(rnd.uniform(0.2, 0.8) / count, 5),
            "held_items": rnd.choice([0, 0, 1, 6]),
        }

    stops = _make_disturbances(rnd, get_process_names(case), kills=False)
    return {
        **case,
        "epochs": epochs,
        "resume": 0 if is_resumed else None,
        "disturbances": [*rnd.sample(disturbances, rnd.randint(0, 5)), *rnd.sample(stops, min(len(stops), 1))],
        "changes": draw_changes(),
        "changes_after_resume": draw_changes() if rnd.random() < 0.7 else None,
    }


def make_small_config(rnd: random.Random) -> dict[str, Any]:
    """Return a pipeline of at most 12 items of at most some kB, often with draws and generators."""
    order = rnd.choices(["source", "any"], [5, 1])[0]
    batchable = order == "source" and rnd.random() < 0.5
    payload = "number" if rnd.random() < 0.7 else rnd.choice(["small", "text", "image", "loaned"][2 * batchable :])
    stages = _make_stages(rnd, batchable=batchable, max_stages=4, payload=payload, kinds=_SMALL_STAGES)
    modes = ["auto", "pipe", "shared_memory"] if payload == "number" else ["auto", "shared_memory"]
    return {
        **pipeline(*stages, source=_make_source(rnd, rnd.randint(1, 12))),
        "seed": rnd.randrange(100),
        "order": order,
        "window": rnd.choice(["auto", "auto", 1, 2, rnd.randint(3, 30)]),
        "memory": "128MiB",
        "transport": {"mode": rnd.choice(modes)},
        "max_restarts": 1000,
    }


def draw_message_items(seed: int) -> int:
    """Return how many items a message may hold, whatever they cost; 0: as many as they cost, which may be one."""
    return random.Random(f"message {seed}").choice([0, 0, 2, 5, 1000])


def get_process_names(case: Case) -> list[str]:
    """Return the names of a case's worker processes."""
    names = ["source/0"]
    for entry in case["config"]["stages"]:
        if not entry.get("fuse"):
            names += [f"{entry['name']}/{worker}" for worker in range(entry.get("workers", 1))]
    return names


def vary_resources(config: dict[str, Any], rnd: random.Random) -> dict[str, Any]:
    """Return the same pipeline with other workers, window and transport: a saved state must mean the same there."""
    stages = [{**entry, "workers": rnd.randint(1, 4)} if "workers" in entry else entry for entry in config["stages"]]
    return {**config, "stages": stages, "window": rnd.choice(["auto", 1, 5]), "transport": {"mode": "auto"}}


# ---------------------------------------------------------------------------------------------- the pipeline


def _make_source(rnd: random.Random, count: int | None = None) -> dict[str, Any]:
    if count is None:
        count = rnd.choice([0, 1, rnd.randint(2, 40), rnd.randint(40, 300)])
    own = ["Items", "stream", "drawing_stream", "OwnDrawingStream", "DrawingItems"]
    uses = rnd.choice(["stagepipe.sources.numbers", *(f"{STAGES}.{name}" for name in own)])
    return {"uses": uses, "with": {"count": count}, "retries": 1000}


def _has_dataset(kind: str, seed: int) -> bool:
    return random.Random(f"dataset {kind} {seed}").random() < _DATASET_SHARE


def _make_dataset(rnd: random.Random, count: int, *flaws: str) -> dict[str, Any]:
    flaw = rnd.choice(["", "", *(flaws or ("dropped", "failing", "flaky"))])
    samples = {"count": count, "kind": rnd.choice(["nested", "row", "drawn", "reused"]), "flaw": flaw}
    dataset = {"dataset": "tests.chaos.samples.Samples", "with": {**samples, "salt": rnd.randrange(100)}}
    return {"uses": "stagepipe.sources.dataset", "with": {**dataset, "shuffle": rnd.random() < 0.5}}


def _batch_dataset(rnd: random.Random, source: dict[str, Any]) -> list[dict[str, Any]]:
    """Give a dataset its workers; return sometimes a stage fused to them, a `Batch`, and stages after it."""
    source |= {"workers": rnd.choice([1, 1, 2, 3]), "on_error": "skip"}
    if source["with"]["with"]["flaw"] != "failing":
        source["retries"] = 1000
    size = rnd.choice([1, rnd.randint(2, 9), rnd.randint(10, 200)])
    stages = [stage("stagepipe.stages.Batch", with_={"size": size, "drop_last": rnd.random() < 0.3})]
    if rnd.random() < 0.3:
        stages.append(_make_stage(rnd, "stagepipe.stages.Unbatch"))
    stages += [_make_random_stage(rnd, _STAGES) for _ in range(rnd.randint(0, 2))]
    if rnd.random() < 0.4:
        is_unbatched = any(entry["uses"].endswith(".Unbatch") for entry in stages)  # lists of draws have other lengths
        uses = rnd.choice(["same", "parts", "dropped", "same" if is_unbatched else "drawn_parts"])
        arguments = {"with_": {"salt": rnd.randrange(100)}} if uses in {"parts", "dropped"} else {}
        stages.insert(0, stage(f"{STAGES}.{uses}", fuse=True, retries=1000, **arguments))
    for index, entry in enumerate(stages):
        entry["name"] = f"s{index}"
    return stages


def _make_stages(
    rnd: random.Random,
    *,
    batchable: bool,
    max_stages: int = 6,
    payload: str = "",
    kinds: StageKinds | None = None,
) -> list[dict[str, Any]]:
    payload = payload or rnd.choice(
        ["number", "image", "loaned"] if batchable else ["number", "text", "arrays", "image", "loaned"]
    )
    stages = [_make_stage(rnd, payload, salt=True)]
    while len(stages) < rnd.randint(1, max_stages):
        stages += (
            _make_order_point(rnd) if batchable and rnd.random() < 0.35 else [_make_random_stage(rnd, kinds or _STAGES)]
        )
    for index, entry in enumerate(stages):
        entry["name"] = f"s{index}"
    return stages


def add_conditions(stages: list[dict[str, Any]], rnd: random.Random) -> list[dict[str, Any]]:
    """Return the stages, some with a `when`: not the first one, nor what a `Batch` needs on all items."""
    first_free = max((i for i, entry in enumerate(stages) if entry.get("uses", "").endswith(".Batch")), default=-1)
    return [
        {**entry, "when": _make_condition(rnd)}
        if rnd.random() < _CONDITION_SHARE and index and _may_pass_by(entry, is_batched_later=index < first_free)
        else entry
        for index, entry in enumerate(stages)
    ]


def add_threads(stages: list[dict[str, Any]], rnd: random.Random) -> list[dict[str, Any]]:
    """Return the stages, some with `concurrency`: not those with a batch or a condition that draws, nor the fused."""
    has_fused = [bool(later.get("fuse")) for later in stages[1:]] + [False]
    return [
        {**entry, "uses": f"{STAGES}.{_WITH_THREADS[name]}", "concurrency": rnd.randint(2, 6)}
        if rnd.random() < _THREADS_SHARE
        and (name := entry["uses"].removeprefix(f"{STAGES}.")) in _WITH_THREADS
        and not (entry.get("fuse") or entry.get("batch") or is_fused_to or "DrawnChoice" in str(entry.get("when")))
        else entry
        for entry, is_fused_to in zip(stages, has_fused, strict=True)
    ]


def add_tasks(stages: list[dict[str, Any]], rnd: random.Random) -> list[dict[str, Any]]:
    """Return the stages, half of those with `concurrency` as an `async def`, where there is one that does the same."""
    tasks = {f"{STAGES}.{name}": f"{STAGES}.{task}" for name, task in _WITH_TASKS.items()}
    return [
        {**entry, "uses": tasks.get(entry["uses"], entry["uses"])}
        if "concurrency" in entry and rnd.random() < 0.5
        else entry
        for entry in stages
    ]


def _may_pass_by(entry: dict[str, Any], *, is_batched_later: bool) -> bool:
    path, _, name = entry["uses"].rpartition(".")
    return path == STAGES and (not is_batched_later or name in _SAME_STRUCTURE)


def _make_condition(rnd: random.Random) -> dict[str, Any]:
    return rnd.choice(
        [
            {"uses": f"{STAGES}.chosen", "with": {"salt": rnd.randrange(100)}},
            {"uses": f"{STAGES}.chosen", "with": {"salt": rnd.randrange(100)}},
            {"uses": f"{STAGES}.DrawnChoice"},
            {"of": {"exists": rnd.random() < 0.5}},
        ]
    )


def _choose_transport(rnd: random.Random, stages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    mode = rnd.choice(["auto", "auto", "pipe", "shared_memory"])
    if mode == "pipe" and not stages[0]["uses"].endswith(".number"):  # large items want one worker on each side
        stages = [{**entry, "workers": 1} if "workers" in entry else entry for entry in stages]
    return stages, mode


def _make_order_point(rnd: random.Random) -> list[dict[str, Any]]:
    if rnd.random() < 0.4:
        return [stage("stagepipe.stages.Shuffle", with_={"size": rnd.randint(1, 12)})]
    batch = {"size": rnd.randint(1, 9), "drop_last": rnd.random() < 0.3}
    # Without Unbatch, a later Batch would get batches of different lengths.
    return [stage("stagepipe.stages.Batch", with_=batch), _make_stage(rnd, "stagepipe.stages.Unbatch")]


def _make_random_stage(rnd: random.Random, kinds: StageKinds) -> dict[str, Any]:
    plain, salted = kinds.plain, kinds.salted
    if rnd.random() < _LIBRARY_SHARE:
        return _make_stage(rnd, rnd.choice(["torch_drawn", "Augmented"]))
    draw = rnd.random()
    if draw < 0.1:
        return {
            **_make_stage(rnd, "listed", salt=True, fuse=False),
            "batch": {"size": rnd.randint(1, 8), "max_wait": "5ms"},
        }
    if draw < 0.2 and kinds.in_place:
        return {**_make_stage(rnd, "in_place", fuse=False), "mutable": True}
    uses = rnd.choice([*plain, *salted])
    entry = _make_stage(rnd, uses, salt=uses in salted)
    if uses == "Keeping":
        entry["with"] = {"count": rnd.randint(1, 5)}
    elif uses in {"flaky", "flaky_draws"}:
        entry["retries"] = 2
    elif uses == "failing":
        entry["on_error"] = "skip"
    elif uses == "hanging":
        entry["timeout"] = "1s"
    return entry


def _make_stage(rnd: random.Random, uses: str, *, salt: bool = False, fuse: bool = True) -> dict[str, Any]:
    """Return a stage with a random number of workers, or fused to the stage before it."""
    keys: dict[str, Any] = (
        {"fuse": True} if fuse and rnd.random() < 0.2 else {"workers": rnd.choice([1, 1, 1, 1, 2, 2, 3, 4])}
    )
    if uses not in {"failing", "flaky", "flaky_draws"}:
        keys["retries"] = 1000  # no item must be skipped because its worker was killed from outside too often
    path = uses if "." in uses else f"{STAGES}.{uses}"
    return stage(path, **({"with_": {"salt": rnd.randrange(100)}} if salt else {}), **keys)


# ---------------------------------------------------------------------------------------------- the disturbances


def _make_disturbances(rnd: random.Random, processes: list[str], *, kills: bool) -> list[dict[str, Any]]:
    """Return kills, stops and crashes. Kills and stops happen some seconds after the start or the first item."""
    disturbances = []
    for _ in range(rnd.choice([0, 1, 2, 4])):
        kind = rnd.choice(["kill", "kill", "stop", "crash"] if kills else ["stop"])
        process = rnd.choice(processes)
        if kind == "crash":
            rule = f"{rnd.choice(sorted(CRASH_POINTS))}:{rnd.choice([1, 1, 2, 3, rnd.randint(4, 60)])}:{process}"
            disturbances.append({"kind": kind, "at": rule})
            continue
        moment = {"after": rnd.choice(["start", "first", "first"]), "delay_s": round(10 ** rnd.uniform(-3, 0), 4)}
        duration = {"for_s": round(rnd.uniform(0.01, 0.5), 3)} if kind == "stop" else {}
        disturbances.append({"kind": kind, "process": process, **moment, **duration})
    return disturbances


def _make_many_kills(rnd: random.Random, processes: list[str]) -> list[dict[str, Any]]:
    """Return some 8 to 30 kills, alone or in bursts, spread over the items, and crash points, few of which are hit."""
    disturbances: list[dict[str, Any]] = []
    for _ in range(rnd.randint(8, 15)):
        share = rnd.choice(["start", "first", *(round(rnd.random(), 3) for _ in range(18))])
        for _ in range(rnd.choice([1, 1, 1, 2, 3])):
            delay_s = round(10 ** rnd.uniform(-4, -0.3), 4)
            disturbances.append({"kind": "kill", "process": "*", "after": share, "delay_s": delay_s})
    for _ in range(rnd.randint(10, 25)):
        rule = f"{rnd.choice(sorted(CRASH_POINTS))}:{rnd.choice([1, 2, rnd.randint(3, 60)])}:{rnd.choice(processes)}"
        disturbances.append({"kind": "crash", "at": f"{rule}:{rnd.choice([0, 0, 1, 2, 3])}"})
    return disturbances
