"""What travels between the supervisor and the workers of a run, and how it is written. Imported on both sides.

worker_spec   what a worker is started with: its part of the plan and its descriptors
main_objects  what workers need of the caller's script; imported on first use, because workers do not need it
messages      the control channel: commands to workers, events to the supervisor, how many items a stage yields
errors        the text of a failure: message, hint, item, the user's part of the traceback
lineage       what an order point's output was made of; several items in one packet
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names
from stagepipe.runtime.protocol.errors import (
    UnpicklableResultError,
    WorkerDiedError,
    add_source_lines,
    describe_failure,
    extract_user_stacks,
    format_error,
    format_error_text,
    format_item,
    format_key,
    format_user_traceback,
    make_run_error,
    read_only_hint,
)
from stagepipe.runtime.protocol.lineage import (
    DeliveredLeaves,
    LeafGroup,
    OutputLineage,
    SampleChunk,
    UnorderedLineage,
    attach_root,
    detach_root,
    extract_root,
    pack_lineage,
    raise_inexact_cursor,
    unpack_lineage,
    unpack_source_items,
    unpack_unordered_lineage,
)
from stagepipe.runtime.protocol.messages import (
    ArenaFullEvent,
    Cardinality,
    ControlSocket,
    DeadLetterEvent,
    FailureEvent,
    ForcedSkip,
    ItemDigestEvent,
    ProbeSample,
    ReadOnceEvent,
    ReadyEvent,
    Retire,
    Seek,
    StaleLeasesEvent,
    Stop,
    StreamStateEvent,
    UnbatchedRange,
    WorkerEvent,
    count_outputs,
    decode_command,
    decode_event,
    encode_message,
    get_control_address,
    infer_cardinality,
)
from stagepipe.runtime.protocol.worker_spec import (
    BROKEN_CUDA_EXIT_CODE,
    STACK_DUMP_SIGNAL,
    SentPlan,
    WorkerSpec,
    find_unpicklable_stage,
    load_worker_spec,
    read_worker_spec,
    send_plan,
    write_worker_spec,
)

if TYPE_CHECKING:
    from stagepipe.runtime.protocol.main_objects import dump_with_main_objects, pickle_main_objects

__all__ = [
    "BROKEN_CUDA_EXIT_CODE",
    "STACK_DUMP_SIGNAL",
    "ArenaFullEvent",
    "Cardinality",
    "ControlSocket",
    "DeadLetterEvent",
    "DeliveredLeaves",
    "FailureEvent",
    "ForcedSkip",
    "ItemDigestEvent",
    "LeafGroup",
    "OutputLineage",
    "ProbeSample",
    "ReadOnceEvent",
    "ReadyEvent",
    "Retire",
    "SampleChunk",
    "Seek",
    "SentPlan",
    "StaleLeasesEvent",
    "Stop",
    "StreamStateEvent",
    "UnbatchedRange",
    "UnorderedLineage",
    "UnpicklableResultError",
    "WorkerDiedError",
    "WorkerEvent",
    "WorkerSpec",
    "add_source_lines",
    "attach_root",
    "count_outputs",
    "decode_command",
    "decode_event",
    "describe_failure",
    "detach_root",
    "dump_with_main_objects",
    "encode_message",
    "extract_root",
    "extract_user_stacks",
    "find_unpicklable_stage",
    "format_error",
    "format_error_text",
    "format_item",
    "format_key",
    "format_user_traceback",
    "get_control_address",
    "infer_cardinality",
    "load_worker_spec",
    "make_run_error",
    "pack_lineage",
    "pickle_main_objects",
    "raise_inexact_cursor",
    "read_only_hint",
    "read_worker_spec",
    "send_plan",
    "unpack_lineage",
    "unpack_source_items",
    "unpack_unordered_lineage",
    "write_worker_spec",
]

__getattr__ = lazy_names(__name__, __file__)
