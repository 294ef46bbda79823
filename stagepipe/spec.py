"""Defines a checked pipeline as frozen dataclasses: the output of `config` and of the builder, the input of `plan`.

A field with a `ConfigKey` is a key of a config. The fields of the specs are the only list of keys: the models that
check a config, the JSON Schema, the conversion to specs and the options of the Python builder are derived from it. The
first line of a spec's docstring describes its mapping in the JSON Schema. Pure; used in every process. Durations are in
ns, sizes in bytes; None means the default or `auto`.

Engines are registered by name: built-in engines at their first use, others by `register_engine`. An engine declares its
own options (`options`) and its treatment of the keys of a config (`Capabilities`), so the config checks and the
pipeline contain no code for a particular engine.
"""

from __future__ import annotations

import dataclasses
import importlib
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

# ------------------------------------------------------------------ engines


@dataclass(frozen=True, kw_only=True)
class EngineSpec:
    """The engine of a config: its name, and the options that the config gives to it.

    >>> str(EngineSpec()), str(EngineSpec(kind="local"))
    ('local', 'local')
    """

    kind: str = "local"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the name of the engine."""
        return self.kind


LOCAL_ENGINE: Final = EngineSpec()


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What an engine supports, and how it treats the keys of a config.

    Without `resumes_in_mid_epoch`, a run has no cursor: a resume recomputes its epoch from the start. `has_hops`: the
    stages run in workers with hops between them, so `auto` may choose their number by this machine's cost curves.
    `forks_workers`: the workers are children of this process, so its fork server starts them, and a forked child must
    not touch them. `shares_memory`: other processes can map the memory of the items. `calls_objects`: the stages are
    the caller's own objects, and a run may change them. `shows_workers`: a run has a trace and Prometheus metrics.
    Without `yields_items`, the caller gets no items: each node of a cluster runs the pipeline to its sinks.
    """

    resumes_in_mid_epoch: bool = False
    has_hops: bool = False
    forks_workers: bool = False
    shares_memory: bool = False
    calls_objects: bool = False
    shows_workers: bool = False
    yields_items: bool = True

    takes_worker_ranges: bool = False
    """Whether the engine adjusts the number of workers within a range such as `1-4`, from the smallest number on."""
    takes_resources: bool = False
    """Whether the engine enforces `resources`. A worker then has a GPU only if its stage asks for one."""
    runs_tail_in_caller: bool = False
    """Whether the calling process runs the stages after an order point, unless they have several workers."""
    refused_keys: Mapping[str, str] = field(default_factory=dict)
    """The refused keys of stages and sinks, each with the reason."""
    refused_outputs: str = ""
    """Why `trace` and `prometheus` of the config's `report` are refused; empty if they are accepted."""
    ignored_keys: tuple[str, ...] = ()
    """Keys of the pipeline that have no effect, by their names in the spec; see `ignored_reason`."""
    ignored_reason: str = ""


class EngineOption(NamedTuple):
    """An option of an engine: its JSON Schema, a test for accepted values, and the message for other values."""

    schema: Mapping[str, Any]
    accepts: Callable[[Any], bool]
    expected: str
    hint: str = ""


class EngineDeclaration:
    """The facts about an engine that a config needs. Its subclass `stagepipe.engine.Engine` also runs plans."""

    name: str
    """The name of the engine in a config."""
    title: str
    """The name of the engine in sentences."""
    capabilities: Capabilities
    options: ClassVar[Mapping[str, EngineOption]] = {}
    example: ClassVar[Mapping[str, Any]] = {}
    """Options for an example in error messages."""

    def get_capabilities(self, options: Mapping[str, Any]) -> Capabilities:
        """Return the capabilities of the engine with these options, which may contain mistakes."""
        del options
        return self.capabilities

    @property
    def phrase(self) -> str:
        """The beginning of a sentence about a pipeline on this engine."""
        return f"a {self.title}"

    @property
    def way_out(self) -> str:
        """How to run on the local engine instead."""
        return f"run with `engine={LOCAL_ENGINE}`"

    @property
    def outputs_refusal(self) -> str:
        """Why the arguments `trace` and `prometheus` of a pipeline are refused."""
        return f"not with `engine: {self.name}`"


_BUILT_IN: Final = {"local": "stagepipe.engine.engines.LOCAL", "ray": "stagepipe.engine.ray.engine.RAY"}
"""The paths of the built-in engines: they are above this layer, so each is imported at its first use."""
_engines: Final[dict[str, EngineDeclaration]] = {}


def register_engine(engine: EngineDeclaration) -> None:
    """Let configs name this engine, from now on and in this process."""
    _engines[engine.name] = engine


def find_engine(name: str) -> EngineDeclaration | None:
    """Return the engine with this name; None if there is none."""
    if name not in _engines and name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].rpartition(".")
        register_engine(getattr(importlib.import_module(module), attribute))
    return _engines.get(name)


def list_engines() -> list[EngineDeclaration]:
    """Return all engines, the built-in ones first."""
    found = (find_engine(name) for name in dict.fromkeys((*_BUILT_IN, *_engines)))
    return [engine for engine in found if engine is not None]


def get_capabilities(spec: EngineSpec) -> Capabilities:
    """Return the capabilities of the engine of a spec.

    >>> get_capabilities(EngineSpec()).resumes_in_mid_epoch
    True
    """
    engine = find_engine(spec.kind)
    return Capabilities() if engine is None else engine.get_capabilities(spec.options)


@dataclass(frozen=True, kw_only=True)
class ResourcesSpec:
    """Resources that a cluster reserves for each worker of a stage; None: a share of the CPUs, and no GPU."""

    cpus: float | None = None
    gpus: float | None = None


class WorkerRange(NamedTuple):
    """A number of workers that the engine adjusts during the run, from the smallest to the largest.

    >>> str(WorkerRange(1, 8))
    '1-8'
    """

    minimum: int
    maximum: int

    def __str__(self) -> str:
        """Return the range as a config writes it."""
        return f"{self.minimum}-{self.maximum}"


# ------------------------------------------------------------------ keys

_VALUE_TYPE_BY_UNIT: Final = {"_ns": ("Duration", "float | str"), "_bytes": ("Size", "int | str")}
"""How a config and a Python caller write a field with a unit: `timeout: 30s` sets `timeout_ns`."""


@dataclass(frozen=True)
class ConfigKey:
    """Metadata of a spec's field: `workers: Annotated[int, ConfigKey("Number of processes.", minimum=1)]`.

    Editors show `description`. `name` is the key, if it differs from the field's name without its unit. `value_type`
    names the type in `config.schema` that checks and converts the value; without one, the field's own type or unit
    does. `minimum` and `maximum` bound an integer; with `minimum=1` a size or a duration must not be 0.

    `is_option`: callers of the Python builder give it as an option; `python_type` is the type of the option, if it
    differs from the field's type. `is_process_key`: it configures the stage's processes, so a fused stage cannot have
    it. `is_one_or_list`: a config writes a list of values, or a single value without a list.
    """

    description: str
    _: KW_ONLY
    name: str | None = None
    value_type: str | None = None
    minimum: int | None = None
    maximum: int = 2**63 - 1
    python_type: str | None = None
    is_option: bool = True
    is_process_key: bool = False
    is_one_or_list: bool = False


@dataclass(frozen=True)
class KeyField:
    """A field of a spec that is a key. `types` are the members of its type, which may be a union."""

    field: dataclasses.Field[Any]
    key: str
    types: tuple[Any, ...]
    info: ConfigKey

    @property
    def is_optional(self) -> bool:
        """Whether the field may be None."""
        return type(None) in self.types

    @property
    def accepts_auto(self) -> bool:
        """Whether `auto` is a value of the field."""
        return Literal["auto"] in self.types


def iter_keys(spec_type: type[Any]) -> Iterator[KeyField]:
    """Yield the keys of a spec. A target is not a key itself: its keys belong to the spec that contains it.

    >>> from stagepipe.spec import StageSpec
    >>> [key.key for key in iter_keys(StageSpec)][:4]
    ['name', 'uses', 'with', 'workers']
    """
    hints = get_type_hints(spec_type, include_extras=True)
    for spec_field in dataclasses.fields(spec_type):
        hint = hints[spec_field.name]
        if get_origin(hint) is Annotated:
            yield _make_key_field(spec_field, *get_args(hint))
        elif dataclasses.is_dataclass(hint):
            yield from iter_keys(hint)  # type: ignore[arg-type]  # a class: the types of fields are no instances


def get_common_fields(values: Any, target: type[Any]) -> dict[str, Any]:
    """Return the values of a dataclass for the fields that the dataclass `target` has too."""
    names = {field.name for field in dataclasses.fields(target)}
    return {field.name: getattr(values, field.name) for field in dataclasses.fields(values) if field.name in names}


def iter_options(spec_type: type[Any]) -> Iterator[KeyField]:
    """Yield the keys that are options of the builder. Targets and keys whose value is a spec have methods instead.

    >>> from stagepipe.spec import SourceSpec
    >>> [key.key for key in iter_options(SourceSpec)][:3]
    ['workers', 'concurrency', 'threads']
    """
    for key in iter_keys(spec_type):
        value_types = {inner for member in key.types for inner in (member, *get_args(member))}
        is_own = key.field in dataclasses.fields(spec_type)
        is_spec = key.info.value_type is None and any(map(dataclasses.is_dataclass, value_types))
        if key.info.is_option and is_own and not is_spec:
            yield key


def _make_key_field(field: dataclasses.Field[Any], hint: Any, info: ConfigKey) -> KeyField:
    name, underscore, unit = field.name.rpartition("_")
    value_type, python_type = _VALUE_TYPE_BY_UNIT.get(underscore + unit, (None, None))
    if value_type is not None:
        info = dataclasses.replace(info, name=info.name or name, value_type=value_type, python_type=python_type)
    members = get_args(hint) if get_origin(hint) in {Union, types.UnionType} else (hint,)
    return KeyField(field, info.name or field.name, members, info)


@dataclass(frozen=True)
class Target:
    """The code to run: an import path and its arguments.

    `uses` is an object instead of a path if it comes from Python. `arguments` may contain nested targets at any depth,
    `{"uses": ..., "with": ...}`. The worker builds them, innermost first. A mapping with the key `uses` is always a
    nested target.

    >>> Target("pkg.ops.resize", {"size": 224}).label
    'pkg.ops.resize'
    """

    uses: Annotated[
        str | Callable[..., Any] | object,
        ConfigKey(
            "Path of a function or class: `pkg.mod.name`, `pkg.mod:name`, or `./file.py:name` relative to this file.",
            value_type="Uses",
        ),
    ]
    arguments: Annotated[
        Mapping[Any, Any],
        ConfigKey(
            "Keyword arguments. Nested mappings with `uses` (and `with`) are built first, at any depth.",
            name="with",
            value_type="Arguments",
        ),
    ] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """A short name for messages: the import path, or the name of the object."""
        if isinstance(self.uses, str):
            return self.uses
        return getattr(self.uses, "__qualname__", type(self.uses).__name__)


COMPARISONS: Final = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
"""The tests that compare a field with a value, and the sign of each."""
FIELD_TESTS: Final = (*COMPARISONS, "in", "exists")
"""All tests of a field: `in` takes a list of values, and `exists` takes true or false."""

FieldTests = Mapping[str, Mapping[str, Any]]
"""The tests of each field, such as `{"width": {"ge": 64}}`. An item matches if all of them hold."""
Condition = FieldTests | Target
"""The value of `when`: tests of fields, or a predicate that is called with the item."""


def format_condition(condition: Condition) -> str:
    """Return a condition in its shortest config form.

    >>> format_condition({"kind": {"in": ["image", "photo"]}, "meta.width": {"ge": 64}})
    '{kind: [image, photo], meta.width: {ge: 64}}'
    """
    if isinstance(condition, Target):
        return condition.label
    return _format_value({field: _shorten_tests(tests) for field, tests in condition.items()})


def _shorten_tests(tests: Mapping[str, Any]) -> Any:
    name, value = next(iter(tests.items()))
    return value if len(tests) == 1 and name in {"eq", "in"} else tests


def _format_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_format_value(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_format_value, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


TransportMode = Literal["auto", "pipe", "shared_memory"]

SourceReading = Literal["", "index", "shards", "stream"]
"""How the items of a source are read: see `SourceSpec`."""

SOURCE_NAME = "source"
"""The stage name of the source."""

_Retries = Annotated[int | None, ConfigKey("Maximum number of retries of a failed item.", minimum=0, maximum=1000)]
_OnError = Annotated[
    Literal["fail", "skip"],
    ConfigKey("`fail` ends the run. `skip` writes the item to the dead letters, and the run continues."),
]
_AllowNone = Annotated[
    bool, ConfigKey("`true`: None is a valid item. `false`: None ends the run, because a `return` may be missing.")
]


@dataclass(frozen=True)
class BatchSpec:
    """Calls the stage with lists of items.

    A call has up to `size` items and waits up to `max_wait_ns` for a full list.
    """

    size: Annotated[int, ConfigKey("Maximum number of items per call.", minimum=1)]
    max_wait_ns: Annotated[int, ConfigKey("Maximum time to wait for a full list, such as `20ms`.")] = 20_000_000


@dataclass(frozen=True, kw_only=True)
class CacheSpec:
    """Where a stage keeps its outputs, and when a kept output is used.

    `path` is a folder, relative to the current directory. `key` replaces the parts that stagepipe cannot determine.
    `is_deterministic`: neither this stage nor an earlier one draws random numbers, so an item is the same in all
    epochs.
    """

    path: str
    key: str | None = None
    is_deterministic: bool = False


@dataclass(frozen=True, kw_only=True)
class StageSpec:
    """One stage; each worker is a process.

    With `worker_bounds`, the number of workers changes within them during the run. A range in the config becomes `auto`
    with bounds; in a planned run, `workers` is the number at the start. `is_order_point` and `items_per_output` come
    from the stage's class (see `stagepipe.stages.OrderPointStage`). `sink_path` is the path of the sink in the config,
    if the planner made the stage from one. `part_of` names the stage, source or sink of the config to which an inner
    process belongs; "" for a stage that the user wrote.
    """

    name: Annotated[str, ConfigKey("Unique name of letters, digits, `_` and `-`.", value_type="StageName")]
    target: Target
    workers: Annotated[
        int | Literal["auto"],
        ConfigKey(
            "Number of processes. `auto`, `1-8` or `{min: 1, max: 8}`: stagepipe chooses it, also during the run.",
            value_type="Workers",
            python_type="int | str | dict[str, int]",
            is_process_key=True,
        ),
    ] = 1
    group: Annotated[
        int,
        ConfigKey(
            "Processes per worker that share each item, for a model split with torch.distributed.",
            minimum=1,
            maximum=1024,
            is_process_key=True,
        ),
    ] = 1
    concurrency: Annotated[
        int,
        ConfigKey(
            "Concurrent items per process, on threads or as tasks of an `async def`. For calls that wait.",
            minimum=1,
            maximum=1024,
            is_process_key=True,
        ),
    ] = 1
    threads: Annotated[
        int | None, ConfigKey("OMP, MKL and torch threads per process.", minimum=1, maximum=4096, is_process_key=True)
    ] = None
    cpus: Annotated[
        tuple[int, ...] | None,
        ConfigKey(
            "CPUs on which the stage may run: `0-3`, or `[0, 2]`.",
            value_type="Cpus",
            python_type="str",
            is_process_key=True,
        ),
    ] = None
    device: Annotated[
        str | None,
        ConfigKey(
            "`cuda` (spreads the workers over all GPUs), `cuda:1` or `cpu`.", value_type="Device", is_process_key=True
        ),
    ] = None
    env: Annotated[
        Mapping[str, str],
        ConfigKey(
            "Environment variables of the stage's processes.",
            value_type="Environment",
            python_type="dict[str, str]",
            is_process_key=True,
        ),
    ] = field(default_factory=dict)
    timeout_ns: Annotated[int | None, ConfigKey("Maximum time per item, such as `30s`.", minimum=1)] = None
    start_timeout_ns: Annotated[int, ConfigKey("Maximum time for a worker to start, such as `10m`.", minimum=1)] = (
        600_000_000_000
    )
    retries: _Retries = None
    on_error: _OnError = "fail"
    allow_none: _AllowNone = False
    stateful: Annotated[bool, ConfigKey("`true`: the stage keeps state across items.")] = False
    transport: Annotated[TransportMode, ConfigKey("Transport of the hop into this stage.")] = "auto"
    fuse: Annotated[
        bool | Literal["auto"],
        ConfigKey(
            "`true` runs the stage in the previous stage's process; `auto` does so if that is faster.",
            value_type="Fuse",
        ),
    ] = False
    field: Annotated[
        str | Mapping[str, str] | None,
        ConfigKey(
            "Apply the stage to one field of a dict item; `{img: image}` maps arguments to fields.",
            value_type="FieldSelection",
            is_option=False,
        ),
    ] = None
    as_: Annotated[
        Literal["numpy", "tensor", "pil"] | None,
        ConfigKey("Convert the field to this type before the call.", name="as", is_option=False),
    ] = None
    into: Annotated[
        str | None,
        ConfigKey("Write the result to this field of the item; the field may be new.", value_type="FieldName"),
    ] = None
    when: Annotated[
        FieldTests | Target | None,
        ConfigKey(
            "Run the stage only on matching items, such as `{kind: image}` or `{width: {ge: 64}}`; others pass by.",
            value_type="When",
            python_type="dict[str, Any] | str | Callable[[Any], object]",
        ),
    ] = None
    cache: Annotated[
        CacheSpec | None,
        ConfigKey(
            "Folder for the stage's outputs: outputs in it are read instead of computed again.",
            value_type="StageCache",
            python_type="str | dict[str, Any]",
        ),
    ] = None
    batch: Annotated[BatchSpec | None, ConfigKey("Call the stage with lists of items.", is_process_key=True)] = None
    mutable: Annotated[bool, ConfigKey("`true`: the stage gets a private copy, which it may modify.")] = False
    reseed: Annotated[
        bool,
        ConfigKey("`false`: do not seed the random generators (the global ones and the stage's own) before each item."),
    ] = True
    resources: Annotated[
        ResourcesSpec | None,
        ConfigKey(
            "Resources that Ray reserves per worker: `{cpus: 0.5, gpus: 1}`. Default: a share of the CPUs.",
            value_type="Resources",
            python_type="dict[str, float]",
            is_process_key=True,
        ),
    ] = None
    worker_bounds: WorkerRange | None = None
    is_order_point: bool = False
    is_async: bool = False
    items_per_output: int = 1
    sink_path: str = ""
    part_of: str = ""

    def __post_init__(self) -> None:
        """With threads or tasks, several items share the global generators, so only `context().rng` is seeded."""
        if self.has_items_in_progress:
            object.__setattr__(self, "reseed", False)

    @property
    def has_items_in_progress(self) -> bool:
        """Whether a worker may have several items in progress: on threads, or as tasks of an event loop."""
        return self.concurrency > 1 or self.is_async

    def format_workers(self) -> str:
        """Write the number of workers as a config does: `4`, `auto` or `1-4`."""
        return str(self.worker_bounds or self.workers)

    @property
    def config_path(self) -> str:
        """The path of the stage in overrides: `stages.decode`, `source`, or `sink` for a stage made from a sink."""
        return self.sink_path or (SOURCE_NAME if self.row == SOURCE_NAME else f"stages.{self.name}")

    @property
    def row(self) -> str:
        """The name that the user knows: the stage's own name, or for an inner stage the name of its row."""
        return self.part_of or self.name


@dataclass(frozen=True, kw_only=True)
class SourceSpec(StageSpec):
    """The source of the items: an import path and its arguments.

    `reading` says how its items are read, and therefore which keys it takes: by an `index`, or as the `shards` of a
    stream, in `workers` processes; as a `stream` of samples; or in any other way, in one process.
    """

    name: str = SOURCE_NAME
    fuse: Annotated[
        bool | Literal["auto"],
        ConfigKey(
            "`true` reads the items in the process that draws the order; `auto` does so if that is faster.",
            value_type="Fuse",
        ),
    ] = False
    transport: TransportMode = "auto"
    group: int = 1
    field: None = None
    as_: None = None
    into: None = None
    when: None = None
    mutable: bool = False
    reading: SourceReading = ""


@dataclass(frozen=True, kw_only=True)
class SinkSpec:
    """Where items go: an import path and its arguments.

    `writes_parts`, `appends_parts` and `part_multiple` come from the sink's class (see `stagepipe.sinks.PartSink`).
    Only a sink that writes parts has workers. The calling process calls any other sink with each item.
    """

    target: Target
    name: Annotated[
        str | None,
        ConfigKey(
            "Name of the sink's stage, of letters, digits, `_` and `-`. Default: from `uses`.", value_type="StageName"
        ),
    ] = None
    workers: Annotated[
        int | Literal["auto"],
        ConfigKey(
            "Number of processes that write. `auto`, `1-8` or `{min: 1, max: 8}`: stagepipe chooses it.",
            value_type="Workers",
            python_type="int | str | dict[str, int]",
        ),
    ] = 1
    when: Annotated[
        FieldTests | Target | None,
        ConfigKey(
            "Write only matching items, such as `{kind: image}` or `{width: {ge: 64}}`.",
            value_type="When",
            python_type="dict[str, Any] | str | Callable[[Any], object]",
        ),
    ] = None
    threads: Annotated[int | None, ConfigKey("OMP, MKL and torch threads per process.", minimum=1, maximum=4096)] = None
    cpus: Annotated[
        tuple[int, ...] | None,
        ConfigKey("CPUs on which the sink may run: `0-3`, or `[0, 2]`.", value_type="Cpus", python_type="str"),
    ] = None
    env: Annotated[
        Mapping[str, str],
        ConfigKey(
            "Environment variables of the sink's processes.", value_type="Environment", python_type="dict[str, str]"
        ),
    ] = field(default_factory=dict)
    timeout_ns: Annotated[int | None, ConfigKey("Maximum time per part, such as `5m`.", minimum=1)] = None
    worker_bounds: WorkerRange | None = None
    writes_parts: bool = False
    appends_parts: bool = True
    part_multiple: int = 1


@dataclass(frozen=True)
class TransportSpec:
    """The default transport, for hops whose stage sets none.

    With `auto`, buffers of at least `threshold_bytes` go to shared memory; None means `auto`.
    """

    mode: Annotated[TransportMode, ConfigKey("`auto` chooses pipe or shared memory for each buffer.")] = "auto"
    threshold_bytes: Annotated[
        int | None, ConfigKey("`auto`, or the smallest buffer that goes to shared memory, such as `64KiB`.")
    ] = None


@dataclass(frozen=True)
class ReportSpec:
    """Where to write the report, relative to the current directory."""

    json_path: Annotated[str | None, ConfigKey("Write the report as JSON (`stagepipe.report/2`).", name="json")] = None
    html_path: Annotated[str | None, ConfigKey("Write the report as one HTML page.", name="html")] = None
    trace_path: Annotated[
        str | None,
        ConfigKey(
            "Write a timeline of all processes for Perfetto, as `.json` or `.json.gz`.",
            name="trace",
            value_type="TracePath",
        ),
    ] = None
    prometheus: Annotated[
        tuple[str, int] | None,
        ConfigKey(
            "Serve metrics for Prometheus at this address, such as `127.0.0.1:9100`. Port 0 takes a free port.",
            value_type="Address",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class PipelineSpec:
    """A stagepipe pipeline.

    `max_skipped` is a count (int) or a fraction (float, 0.01 for 1%). `config_sha256` covers the whole config,
    `source_sha256` only the keys that determine the source's items. `uses_torch`: a target imports torch.
    `forks_caller`: the workers are forks of the caller, so they have its objects without a transfer.
    """

    name: Annotated[
        str, ConfigKey("Name of letters, digits, `_` and `-`. Default: the file's name.", value_type="Name")
    ] = "pipeline"
    seed: Annotated[
        int, ConfigKey("Seed of all random generators, combined with epoch, stage and item.", minimum=0)
    ] = 0
    order: Annotated[Literal["source", "any"], ConfigKey("Order of the output.")] = "source"
    window: Annotated[int | Literal["auto"], ConfigKey("Items in flight, counted at the source.", minimum=1)] = "auto"
    memory_bytes: Annotated[
        int | None, ConfigKey("Limit on the shared memory of the run, such as `4GiB`.", minimum=1)
    ] = None
    max_restarts: Annotated[int, ConfigKey("Maximum number of worker restarts in a run.", minimum=0)] = 10
    start: Annotated[
        Literal["fork", "spawn"],
        ConfigKey("`fork` starts workers from a process with loaded modules, `spawn` in new interpreters."),
    ] = "fork"
    preload: Annotated[
        tuple[str, ...],
        ConfigKey(
            "Modules to import once, before the workers are forked.",
            value_type="Modules",
            python_type="list[str]",
        ),
    ] = ()
    max_skipped: Annotated[
        int | float | None,
        ConfigKey(
            "Maximum number of skipped items, as a count or a percentage such as `1%`. Above it, the run fails.",
            value_type="MaxSkipped",
            python_type="int | str",
        ),
    ] = None
    attach: Annotated[bool, ConfigKey("`true` lets other processes attach to the run, such as `stagepipe top`.")] = True
    engine: Annotated[
        EngineSpec,
        ConfigKey(
            "`local`: processes on this machine. `ray` or `{ray: {address: auto}}`: a Ray cluster.",
            value_type="Engine",
            python_type="str | dict[str, Any]",
        ),
    ] = LOCAL_ENGINE
    source: Annotated[SourceSpec, ConfigKey("The source of the items.")]
    stages: Annotated[tuple[StageSpec, ...], ConfigKey("The stages, in order.")] = ()
    sinks: Annotated[
        tuple[SinkSpec, ...],
        ConfigKey(
            "One sink or a list of sinks. Without a sink, items are only counted.", name="sink", is_one_or_list=True
        ),
    ] = ()
    transport: Annotated[TransportSpec, ConfigKey("Default transport between stages.")] = TransportSpec()
    report: Annotated[ReportSpec, ConfigKey("Files and address of the report.")] = ReportSpec()
    config_dir: Path | None = None
    config_path: Path | None = None
    config_sha256: str = ""
    source_sha256: str = ""
    uses_torch: bool = False
    forks_caller: bool = False


KEY_SYNONYMS: Final[dict[str, frozenset[str]]] = {
    key: frozenset(synonyms.split())
    for key, synonyms in {
        "workers": "num_workers n_workers nworkers replicas parallelism processes num_proc"
        " num_parallel_calls max_workers min_workers num_replicas instances worker",
        "group": "world_size nproc_per_node tensor_parallel_size tp_size group_size num_ranks ranks",
        "concurrency": "max_concurrency thread_pool num_io_threads in_parallel async_workers pool_size",
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
        "allow_none": "none_ok nullable optional keep_none accept_none",
        "cpus": "cpu_affinity affinity cpu cores cpuset cpu_set",
        "device": "gpus gpu devices cuda accelerator",
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
        "into": "output_field output_column result_key as_field new_field to save_as",
        "when": "if condition where predicate filter only only_if match",
        "as": "as_ format as_type dtype output_format",
        "fuse": "fused inline chain merge",
        "reseed": "seeded worker_init_fn",
        "mutable": "writable writeable copy in_place inplace",
        "max_restarts": "restarts restart_limit max_failures",
        "attach": "top listen monitor_socket live",
        "max_skipped": "max_errors max_errored_blocks skip_limit max_skips",
        "transport": "channel ipc comm",
        "mode": "type kind",
        "threshold": "min_size cutoff threshold_bytes",
        "engine": "executor backend runner scheduler cluster",
        "resources": "ray_remote_args num_cpus num_gpus limits requests",
        "report": "reports metrics logging monitoring",
        "json": "json_path file path",
        "html": "html_path page",
        "trace": "trace_path perfetto chrome_trace timeline profile",
        "prometheus": "metrics_port prometheus_port exporter",
        "stateful": "state has_state",
    }.items()
}
"""Each key and its names in other tools. For a name under several keys, the key that is valid in that place counts."""
