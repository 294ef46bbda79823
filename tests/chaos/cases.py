"""A chaos case: a random pipeline, what is done with it, and what is done to it. Plain values, made from a seed."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from stagepipe.config import load
from stagepipe.core import ConfigError
from stagepipe.runtime.crashing import POINTS
from tests.zoo.pipelines import pipeline, stage

STAGES = "tests.chaos.stages"
Case = dict[str, Any]


@cache
def understood(key: str, value: Any, *, of_stage: bool = True) -> bool:
    """Whether this version takes such a key."""
    keys = {key: value}
    config = pipeline(stage(f"{STAGES}.same", **(keys if of_stage else {})), **({} if of_stage else keys))
    try:
        load(config)
    except ConfigError:
        return False
    return True


def make(seed: int, *, kills: bool = True) -> Case:
    """The case of a seed. Without `kills` nobody dies, though there are stops and errors."""
    rnd = random.Random(seed)
    order = rnd.choices(["source", "any"], [5, 1])[0]
    batchable = order == "source" and rnd.random() < 0.5
    stages = _stages(rnd, batchable=batchable)
    mode = rnd.choice(["auto", "auto", "pipe", "shared_memory"])
    if mode == "pipe" and not stages[0]["uses"].endswith(".number"):  # large items want one worker on each side
        stages = [{**each, "workers": 1} if "workers" in each else each for each in stages]
    config = {
        **pipeline(*stages, source=_source(rnd)),
        "seed": rnd.randrange(100),
        "order": order,
        "window": rnd.choice(["auto", "auto", 1, 2, rnd.randint(3, 30)]),
        "memory": rnd.choice(["128MiB", "256MiB", "1GiB"]),
        "transport": {"mode": mode},
    }
    if understood("max_restarts", 1000, of_stage=False):
        config["max_restarts"] = 1000
    epochs = [rnd.choice([None, None, rnd.random()]) for _ in range(rnd.randint(1, 3))]
    resume = rnd.randrange(len(epochs)) if rnd.random() < 0.4 else None
    case = {"seed": seed, "config": config, "epochs": epochs, "resume": resume}
    return {**case, "disturbances": _disturbances(rnd, names(case), kills=kills)}


def names(case: Case) -> list[str]:
    """The processes of a case, by the names that they go by."""
    found = ["source/0"]
    for each in case["config"]["stages"]:
        if not each.get("fuse"):
            found += [f"{each['name']}/{worker}" for worker in range(each.get("workers", 1))]
    return found


def moved(config: dict[str, Any], rnd: random.Random) -> dict[str, Any]:
    """The same pipeline as another machine would run it: a state must mean the same there."""
    stages = [{**each, "workers": rnd.randint(1, 4)} if "workers" in each else each for each in config["stages"]]
    return {**config, "stages": stages, "window": rnd.choice(["auto", 1, 5]), "transport": {"mode": "auto"}}


# ---------------------------------------------------------------------------------------------- the pipeline


def _source(rnd: random.Random) -> dict[str, Any]:
    count = rnd.choice([0, 1, rnd.randint(2, 40), rnd.randint(40, 300)])
    uses = rnd.choice(["stagepipe.sources.numbers", f"{STAGES}.Items", f"{STAGES}.stream"])
    return {"uses": uses, "with": {"count": count}}


def _stages(rnd: random.Random, *, batchable: bool) -> list[dict[str, Any]]:
    payload = rnd.choice(
        ["number", "image", "loaned"] if batchable else ["number", "text", "arrays", "image", "loaned"]
    )
    found = [_placed(rnd, payload, salt=True)]
    while len(found) < rnd.randint(1, 6):
        found += _grouping(rnd) if batchable and rnd.random() < 0.35 else [_worker(rnd)]
    for at, each in enumerate(found):
        each["name"] = f"s{at}"
    return found


def _grouping(rnd: random.Random) -> list[dict[str, Any]]:
    if rnd.random() < 0.4:
        return [stage("stagepipe.stages.Shuffle", with_={"size": rnd.randint(1, 12)})]
    batch = {"size": rnd.randint(1, 9), "drop_last": rnd.random() < 0.3}
    found = [stage("stagepipe.stages.Batch", with_=batch)]
    # Batches of batches would differ in their length.
    return [*found, _placed(rnd, "stagepipe.stages.Unbatch")]


def _worker(rnd: random.Random) -> dict[str, Any]:
    plain = ["same", "slow", "nested", "drawn", "Keeping"]
    salted = ["changed", "borrowed", "dropped", "parts"]
    if understood("retries", 2):
        salted.append("flaky")
    if understood("on_error", "skip"):
        salted.append("failing")
    draw = rnd.random()
    if draw < 0.1:
        return {
            **_placed(rnd, "listed", salt=True, fuse=False),
            "batch": {"size": rnd.randint(1, 8), "max_wait": "5ms"},
        }
    if draw < 0.2:
        return {**_placed(rnd, "in_place", fuse=False), "mutable": True}
    uses = rnd.choice(plain + salted)
    made = _placed(rnd, uses, salt=uses in salted)
    if uses == "Keeping":
        made["with"] = {"count": rnd.randint(1, 5)}
    elif uses == "flaky":
        made["retries"] = 2
    elif uses == "failing":
        made["on_error"] = "skip"
    return made


def _placed(rnd: random.Random, uses: str, *, salt: bool = False, fuse: bool = True) -> dict[str, Any]:
    """A stage with a number of workers, or in the process before it."""
    where = {"fuse": True} if fuse and rnd.random() < 0.2 else {"workers": rnd.choice([1, 1, 1, 1, 2, 2, 3, 4])}
    if understood("retries", 1000) and uses not in {"failing", "flaky"}:
        where["retries"] = 1000  # a kill from outside is nobody's fault, and no item is poison for it
    path = uses if "." in uses else f"{STAGES}.{uses}"
    return stage(path, **({"with_": {"salt": rnd.randrange(100)}} if salt else {}), **where)


# ---------------------------------------------------------------------------------------------- the disturbances


def _disturbances(rnd: random.Random, processes: list[str], *, kills: bool) -> list[dict[str, Any]]:
    """Each has its moment: so many seconds behind the start, or behind the first item."""
    found = []
    for _ in range(rnd.choice([0, 1, 2, 4])):
        kind = rnd.choice(["kill", "kill", "stop", "crash"] if kills else ["stop"])
        process = rnd.choice(processes)
        if kind == "crash":
            at = f"{rnd.choice(sorted(POINTS))}:{rnd.choice([1, 1, 2, 3, rnd.randint(4, 60)])}:{process}"
            found.append({"kind": kind, "at": at})
            continue
        moment = {"behind": rnd.choice(["start", "first", "first"]), "after_s": round(10 ** rnd.uniform(-3, 0), 4)}
        stopped = {"for_s": round(rnd.uniform(0.01, 0.5), 3)} if kind == "stop" else {}
        found.append({"kind": kind, "process": process, **moment, **stopped})
    return found
