"""A case of the property: a small random pipeline, and the ways of running it that must give the same values.

A case has the keys of a chaos case, so the same shrinking makes it smaller.
"""

from __future__ import annotations

import random
from typing import Any

from tests.chaos.cases import Case, add_conditions, add_threads, draw_message_items, make_small_config

KINDS = ("fused", "killed", "several", "mixed", "fused", "changed", "one")
"""How the processes of consecutive seeds run; see `vary`. A worker's start costs 0.4 s of CPU, so fused ones are cheap.
"""
_PROCESS_KEYS = ("fuse", "workers", "concurrency")


def make_case(seed: int, kind: str | None = None) -> Case:
    """Return the case of a seed. `kind` is one of KINDS, or `inline`: without processes."""
    rnd = random.Random(f"property {seed}")
    config = vary(make_small_config(rnd), "mixed", rnd)
    if config["stages"][-1]["uses"].endswith(".Unbatch") and rnd.random() < 0.5:
        config["stages"].pop()  # the output is batches
    stages = add_conditions(config["stages"], random.Random(f"when {seed}"))
    config["stages"] = add_threads(stages, random.Random(f"threads {seed}"))
    keys = {"limit": rnd.randint(0, 8)} if rnd.random() < 0.1 else {}
    if rnd.random() < 0.1:
        keys |= {"world_size": 2, "rank": rnd.randrange(2)}
    return {
        "seed": seed,
        "config": config,
        "message_items": draw_message_items(seed),
        "keys": keys,
        "kind": kind or KINDS[seed % len(KINDS)],
        "epochs": [],
        "resume": None,
        "disturbances": [],
    }


def vary(config: Case, kind: str, rnd: random.Random) -> Case:
    """Return the same pipeline in other processes.

    `fused` fuses all stages, `one` and `several` none: with one worker each, or with up to three. `mixed` draws for
    each stage. A `killed` pipeline is as it was drawn, and so is a `changed` one, whose workers come and go at random,
    and are killed too. Only those and `several` have threads.
    """
    if kind in {"killed", "changed"}:
        return config
    return {**config, "stages": [_vary_stage(entry, kind, rnd) for entry in config["stages"]]}


def _vary_stage(entry: dict[str, Any], kind: str, rnd: random.Random) -> dict[str, Any]:
    if not any(key in entry for key in _PROCESS_KEYS):
        return entry  # an order point
    kept = {key: value for key, value in entry.items() if key not in _PROCESS_KEYS}
    if "concurrency" in entry:  # the states of both ways must be those of one pipeline
        kept |= {"concurrency": entry["concurrency"]} if kind == "several" else {"reseed": False}
    fuse_share = {"fused": 1.0, "mixed": 0.5}.get(kind, 0.0)
    if rnd.random() < fuse_share and "batch" not in entry:
        return {**kept, "fuse": True}
    return {**kept, "workers": rnd.choice({"several": [1, 2, 3], "mixed": [1, 1, 2]}.get(kind, [1]))}
