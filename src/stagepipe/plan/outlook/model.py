"""What `stagepipe plan` says, as it is written and read: the schema `stagepipe.plan/1`. Pure.

Durations are integer ns, sizes bytes. As in the report, a field may be added, none is renamed or removed.
"""

from __future__ import annotations

import msgspec

SCHEMA = "stagepipe.plan/1"


class Machine(msgspec.Struct, frozen=True):
    """The processors and the memory that the run may use."""

    cpus: int
    memory_bytes: int


class Stage(msgspec.Struct, frozen=True):
    """One stage; the source is the first. `process` names the first stage of the process that it runs in.

    It has `workers` and `wants` as many as help on this machine, as `workers: auto` would choose them for all stages.
    `run_ns` is of one item that it takes in, `items` how many of these there are for each of the source. `cpu_ns` (an
    item of the source, hops included) and `memory_bytes` (of one worker) stand at the first stage of a process.
    """

    name: str
    uses: str
    process: str
    workers: int
    wants: int = 1
    run_ns: int = 0
    items: float = 0.0
    cpu_ns: int = 0
    memory_bytes: int = 0


class Piece(msgspec.Struct, frozen=True):
    """A piece of an item by its path there: a buffer, or what travels inside the pickle (`mode` is `pickle` then).

    `nbytes` is the mean of those seen. `pipe_ns` and `shared_memory_ns` are what carrying this piece alone would cost.
    """

    name: str
    nbytes: int
    least_bytes: int
    most_bytes: int
    dtype: str
    shape: tuple[int, ...]
    in_arena: bool
    mode: str
    pipe_ns: int = 0
    shared_memory_ns: int = 0


class Cost(msgspec.Struct, frozen=True):
    """What a message costs, as it will travel and in either mode alone: pickling, as measured, and carrying."""

    ns: int
    pipe_ns: int
    shared_memory_ns: int
    pickling_ns: int


class Hop(msgspec.Struct, frozen=True, rename={"source": "from", "target": "to"}):
    """One hop. In JSON its ends are `from` and `to`; `mode` is local for a fused one. No `cost` if nothing came."""

    source: str
    target: str
    mode: str
    threshold_bytes: int
    reason: str
    messages: float = 0.0  # for each item of the source
    pickle_bytes: int = 0
    pickle_mode: str = ""
    pieces: tuple[Piece, ...] = ()
    cost: Cost | None = None


class Memory(msgspec.Struct, frozen=True):
    """What the processes will hold: the workers, and beside them the shared memory that the run may take at most."""

    workers_bytes: int
    shared_limit_bytes: int


class Fusion(msgspec.Struct, frozen=True):
    """A stage in the process of the one before it (`into`): what is saved an item, and the foretold rate then.

    `why_not` says why it cannot be, or is empty; `per_s` is 0 then.
    """

    stage: str
    into: str
    saved_ns: int
    per_s: float
    why_not: str = ""


class Advice(msgspec.Struct, frozen=True):
    """One thing to do, on top of those before it: overrides for the command line, words, and the foretold rates."""

    edits: tuple[str, ...]
    words: str
    before_per_s: float
    after_per_s: float


class Outlook(msgspec.Struct, frozen=True):
    """What will run, what it costs, and what would be better. `items` were probed; rates are of the source's items.

    `reason` says what limits the plan; `chosen` what `workers: auto` became, one line a stage.
    """

    name: str
    config_sha256: str
    machine: Machine
    items: int
    stages: tuple[Stage, ...]
    hops: tuple[Hop, ...]
    memory: Memory
    items_per_s: float
    limited_by: str
    reason: str
    fusions: tuple[Fusion, ...]
    advice: tuple[Advice, ...]
    chosen: tuple[str, ...] = ()
    schema: str = SCHEMA


def to_json(outlook: Outlook) -> bytes:
    """The outlook as JSON, UTF-8, indented by two, `schema` first."""
    plain = {"schema": outlook.schema, **msgspec.to_builtins(outlook)}
    return msgspec.json.format(msgspec.json.encode(plain), indent=2) + b"\n"
