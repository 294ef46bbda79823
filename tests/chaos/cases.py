"""A chaos case: a random pipeline, its epochs and its disturbances. Plain values, drawn from a seed.

`tests.properties` draws its pipelines here too, but small ones.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from stagepipe.config import load
from stagepipe.core import ConfigError
from stagepipe.testing.crash_points import CRASH_POINTS
from tests.support.pipelines import pipeline, stage

STAGES = "tests.chaos.stages"
_LIBRARY_SHARE = 0.01
"""Of the stages, those that import a library for seconds."""
Case = dict[str, Any]


@cache
def accepts_key(key: str, value: Any, *, of_stage: bool = True) -> bool:
    """Whether this version of stagepipe accepts the key in a stage or in the config."""
    keys = {key: value}
    config = pipeline(stage(f"{STAGES}.same", **(keys if of_stage else {})), **({} if of_stage else keys))
    try:
        load(config)
    except ConfigError:
        return False
    return True


def make_case(seed: int, *, kills: bool = True) -> Case:
    """Return the case of a seed. Without `kills` no worker dies, but workers are stopped and stages fail."""
    rnd = random.Random(seed)
    config = make_config(rnd)
    epochs = [rnd.choice([None, None, rnd.random()]) for _ in range(rnd.randint(1, 3))]
    resume = rnd.randrange(len(epochs)) if rnd.random() < 0.4 else None
    case = {"seed": seed, "config": config, "epochs": epochs, "resume": resume}
    return {**case, "disturbances": _make_disturbances(rnd, get_process_names(case), kills=kills)}


def make_config(rnd: random.Random, *, small: bool = False) -> dict[str, Any]:
    """Draw a pipeline. A `small` one has at most 12 items of at most some kB and four stages."""
    order = rnd.choices(["source", "any"], [5, 1])[0]
    batchable = order == "source" and rnd.random() < 0.5
    stages = _make_stages(rnd, batchable=batchable, small=small)
    mode = rnd.choice(["auto", "auto", "pipe", "shared_memory"])
    is_large = not stages[0]["uses"].endswith(".number")
    if small and is_large:
        mode = "auto"  # with any number of workers
    elif mode == "pipe" and is_large:  # one worker on each side
        stages = [{**entry, "workers": 1} if "workers" in entry else entry for entry in stages]
    config = {
        **pipeline(*stages, source=_make_source(rnd, small=small)),
        "seed": rnd.randrange(100),
        "order": order,
        "window": rnd.choice(["auto", "auto", 1, 2, rnd.randint(3, 30)]),
        "memory": rnd.choice(["128MiB", "256MiB", "1GiB"]),
        "transport": {"mode": mode},
    }
    if accepts_key("max_restarts", 1000, of_stage=False):
        config["max_restarts"] = 1000
    return config


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


def _make_source(rnd: random.Random, *, small: bool) -> dict[str, Any]:
    count = rnd.randint(1, 12) if small else rnd.choice([0, 1, rnd.randint(2, 40), rnd.randint(40, 300)])
    own = ["Items", "stream", "drawing_stream", "drawing_stream", "DrawingItems"]
    uses = rnd.choice(["stagepipe.sources.numbers", *(f"{STAGES}.{name}" for name in own)])
    return {"uses": uses, "with": {"count": count}}


def _make_stages(rnd: random.Random, *, batchable: bool, small: bool) -> list[dict[str, Any]]:
    payloads = ["number", "image", "loaned"] if batchable else ["number", "text", "arrays", "image", "loaned"]
    payload = "number" if small and rnd.random() < 0.8 else rnd.choice(payloads)
    stages = [_make_stage(rnd, payload, salt=True)]
    if small and payload == "arrays":
        stages[0]["with"]["max_size"] = 4000
    while len(stages) < rnd.randint(1, 4 if small else 6):
        is_order_point = batchable and rnd.random() < 0.35
        stages += _make_order_point(rnd) if is_order_point else [_make_random_stage(rnd, small=small)]
    for index, entry in enumerate(stages):
        entry["name"] = f"s{index}"
    return stages


def _make_order_point(rnd: random.Random) -> list[dict[str, Any]]:
    if rnd.random() < 0.4:
        return [stage("stagepipe.stages.Shuffle", with_={"size": rnd.randint(1, 12)})]
    batch = {"size": rnd.randint(1, 9), "drop_last": rnd.random() < 0.3}
    # Without Unbatch, a later Batch would get batches of different lengths.
    return [stage("stagepipe.stages.Batch", with_=batch), _make_stage(rnd, "stagepipe.stages.Unbatch")]


def _make_random_stage(rnd: random.Random, *, small: bool) -> dict[str, Any]:
    plain = ["same", "slow", "nested", "drawn", "Keeping", "drawn_parts"]
    salted = ["changed", "borrowed", "dropped", "parts"]
    if small:
        plain = ["drawn", "drawn", "Keeping", "drawn_parts", "drawn_parts"]
        salted = ["dropped", "parts"]
    if rnd.random() < _LIBRARY_SHARE:
        plain = ["torch_drawn"]
        salted = []
    if accepts_key("retries", 2):
        salted += ["flaky", "flaky_draws"]
    if accepts_key("on_error", "skip"):
        salted.append("failing")
    draw = rnd.random()
    if draw < 0.1:
        return {
            **_make_stage(rnd, "listed", salt=True, fuse=False),
            "batch": {"size": rnd.randint(1, 8), "max_wait": "5ms"},
        }
    if draw < 0.2 and not small:
        return {**_make_stage(rnd, "in_place", fuse=False), "mutable": True}
    uses = rnd.choice(plain + salted)
    entry = _make_stage(rnd, uses, salt=uses in salted)
    if uses == "Keeping":
        entry["with"] = {"count": rnd.randint(1, 5)}
    elif uses in {"flaky", "flaky_draws"}:
        entry["retries"] = 2
    elif uses == "failing":
        entry["on_error"] = "skip"
    return entry


def _make_stage(rnd: random.Random, uses: str, *, salt: bool = False, fuse: bool = True) -> dict[str, Any]:
    """Return a stage with a random number of workers, or fused to the stage before it."""
    keys: dict[str, Any] = (
        {"fuse": True} if fuse and rnd.random() < 0.2 else {"workers": rnd.choice([1, 1, 1, 1, 2, 2, 3, 4])}
    )
    if accepts_key("retries", 1000) and uses not in {"failing", "flaky", "flaky_draws"}:
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
