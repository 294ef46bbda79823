"""The report as it is written and read: the schema `stagepipe.report/1`. Pure. Durations are int ns, sizes bytes.

The names are a promise to whoever reads the JSON: a field may be added (with a default), never renamed or removed.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from stagepipe.core import UsageError

SCHEMA = "stagepipe.report/1"


class Percentiles(msgspec.Struct, frozen=True):
    """A distribution of durations, each in ns. The percentiles are good to 2 %, `max` and `mean` are exact."""

    p50: int = 0
    p90: int = 0
    p99: int = 0
    max: int = 0
    mean: int = 0


class Host(msgspec.Struct, frozen=True):
    """The machine that ran. `versions` maps a package to its version."""

    cpus: int = 0
    memory_bytes: int = 0
    kernel: str = ""
    python: str = ""
    versions: dict[str, str] = msgspec.field(default_factory=dict)


class TimingOverhead(msgspec.Struct, frozen=True):
    """What the measuring itself costs, a hop, and how that was found."""

    ns_per_hop: int = 0
    how: str = ""


class Run(msgspec.Struct, frozen=True):
    """The run as a whole. `status` is finished, failed or interrupted; `error` says why it failed.

    `items_per_s` counts samples out in the steady state, without start and drain (see `build.steady_rate`).
    """

    status: str
    items_in: int
    items_out: int
    samples_out: int
    items_skipped: int
    wall_ns: int
    items_per_s: float
    first_item_ns: int
    timing_overhead: TimingOverhead
    error: str | None = None


class Stage(msgspec.Struct, frozen=True):
    """One stage; the source is the first. `starting` to `overhead` are shares of its workers' time; their sum is 1.

    `fused_into` names the first stage of the process that it shares with others: it never waits there, so `busy` is 1.
    """

    name: str
    workers: int
    items: int
    starting: float
    busy: float
    starved: float
    blocked: float
    overhead: float
    run_ns: Percentiles
    cpu_ns: int = 0
    rss_bytes: int = 0
    pss_bytes: int = 0
    errors: int = 0
    skipped: int = 0
    retries: int = 0
    crashes: int = 0
    fused_into: str | None = None


class Change(msgspec.Struct, frozen=True):
    """A hop's threshold was moved while it ran, after so many messages, by what they really cost."""

    messages: int
    from_bytes: int
    to_bytes: int
    reason: str


class Transport(msgspec.Struct, frozen=True):
    """How a hop travels and why: `mode` is local, pipe, shared_memory or auto.

    `threshold_bytes` is the one in force at the end, `changes` how it came to that.
    """

    mode: str
    threshold_bytes: int
    reason: str
    changes: tuple[Change, ...] = ()


class Messages(msgspec.Struct, frozen=True):
    """Messages of a hop by the way that they went; `mixed` ones had buffers of both kinds."""

    local: int = 0
    pipe: int = 0
    shared_memory: int = 0
    mixed: int = 0


class Bytes(msgspec.Struct, frozen=True):
    """Bytes of a hop: in the pipe, copied into shared memory, or already there and only described."""

    inline: int = 0
    copied: int = 0
    zero_copy: int = 0


class Phases(msgspec.Struct, frozen=True):
    """The phases of a hop, in the order in which an item passes them. send_wait and queue are waiting, not cost."""

    encode_ns: Percentiles = Percentiles()
    copy_ns: Percentiles = Percentiles()
    send_ns: Percentiles = Percentiles()
    send_wait_ns: Percentiles = Percentiles()
    queue_ns: Percentiles = Percentiles()
    receive_ns: Percentiles = Percentiles()
    decode_ns: Percentiles = Percentiles()


class Predicted(msgspec.Struct, frozen=True):
    """What the calibration of this machine expects a message to cost, in ns (0: not known).

    In either mode, and as the messages went (`taken_ns`); pickling, which costs the same in both, is in it as it was
    measured. `measured_ns` is what was paid, and `error` how many times `taken_ns` that is.
    """

    pipe_ns: int = 0
    shared_memory_ns: int = 0
    taken_ns: int = 0
    measured_ns: int = 0
    error: float = 0.0


class Hop(msgspec.Struct, frozen=True, rename={"source": "from", "target": "to"}):
    """One hop. In JSON its ends are `from` and `to`. `saved_ns` is against the mode not chosen, over the whole run."""

    source: str
    target: str
    transport: Transport
    messages: Messages
    bytes: Bytes
    cost_ns: Percentiles
    phases: Phases
    predicted: Predicted
    saved_ns: int = 0


class Memory(msgspec.Struct, frozen=True):
    """Shared memory of the run. `copied_out_items` reached the consumer as copies, as others still held them."""

    arena_peak_bytes: int = 0
    arena_limit_bytes: int = 0
    copied_out_items: int = 0


class Slow(msgspec.Struct, frozen=True):
    """One of the slowest items."""

    item: str
    stage: str
    run_ns: int
    queue_ns: int


class DeadLetter(msgspec.Struct, frozen=True):
    """An item that was given up. `source_items` are those of the source of which it was made.

    Their numbers are of the source whose SHA-256 is `source`; `trace` is the original traceback.
    """

    item: str
    stage: str
    error: str
    attempts: int
    epoch: int = 0
    source_items: tuple[int, ...] = ()
    source: str = ""
    trace: str = ""


class Restart(msgspec.Struct, frozen=True):
    """A worker that died and was started again; `lost_ns` is the time until the pipeline was back where it was."""

    stage: str
    worker: int
    cause: str
    item: str
    lost_ns: int


class Consumer(msgspec.Struct, frozen=True):
    """The training loop, the sink or `run`: how long it waited for items and how long it worked on them.

    `first_wait_ns` is the part of the wait until the very first item was there. `outside_ns` is neither: nobody
    iterated, between two epochs or behind the last one.
    """

    wait_ns: int = 0
    busy_ns: int = 0
    name: str = "consumer"
    first_wait_ns: int = 0
    outside_ns: int = 0


class Verdict(msgspec.Struct, frozen=True):
    """What limits the run. `kind` is stage, hop, source, consumer or none; `confidence` goes from 0 to 1.

    `sentence` gives the evidence. `fix` is the one edit to try, as an override for the command line
    (`stages.decode.workers=3`), or empty where there is none to give; `advice` says it in words either way.
    """

    limited_by: str
    kind: str
    confidence: float
    sentence: str
    fix: str = ""
    advice: str = ""


class Report(msgspec.Struct, frozen=True):
    """Everything that a run has to say."""

    name: str
    config_sha256: str
    host: Host
    calibration: dict[str, Any]
    run: Run
    stages: tuple[Stage, ...]
    hops: tuple[Hop, ...]
    memory: Memory
    slowest: tuple[Slow, ...]
    dead_letters: tuple[DeadLetter, ...]
    restarts: tuple[Restart, ...]
    verdict: Verdict
    consumer: Consumer = Consumer()
    schema: str = SCHEMA


class _Head(msgspec.Struct):
    """The part of any report that says what it is."""

    schema: str = "none"


def to_json(report: Report) -> bytes:
    """The report as JSON, UTF-8, indented by two, `schema` first.

    >>> from_json(to_json(report)) == report  # doctest: +SKIP
    True
    """
    plain = {"schema": report.schema, **msgspec.to_builtins(report, enc_hook=_plain)}
    return msgspec.json.format(msgspec.json.encode(plain), indent=2) + b"\n"


def from_json(text: bytes | str) -> Report:
    """The report that `to_json` wrote. Fields that this version does not know are left out.

    Raises UsageError where the text is not JSON, is of another schema, or a field is missing or of a wrong type.
    """
    try:
        found = msgspec.json.decode(text, type=_Head).schema
        if found != SCHEMA:
            message = f"not a report that this version reads: its schema is {found!r}, expected {SCHEMA!r}"
            raise UsageError(message)
        return msgspec.json.decode(text, type=Report)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"not a {SCHEMA} file: {error}; give a file that `stagepipe run --report FILE.json` wrote"
        raise UsageError(message) from error


def _plain(value: object) -> object:
    """What msgspec does not know by itself: NumPy's numbers and arrays; anything else as its text."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)
