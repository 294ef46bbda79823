"""What every layer shares, in every process. Imports nothing else of stagepipe.

errors         the exceptions, and `Problem`, one mistake in a config
error_types    a RunError with the type of the exception that caused it
units          sizes and durations, parsed and formatted
ids            keys and cursors
imports        import paths of a config, resolved and imported
object_paths   the import paths of classes and functions
source_identity   the number of a source's items, and its files
skip_count     how many items a job has skipped because of errors
stateful       streams that save and load their state
stream_position   the position of such a stream, as JSON
targets        the objects of a config, built with their arguments and called
config_syntax  how a pipeline was written: messages advise in the same terms
code_origin    whether code is installed or the user's own
deferred       `defer`: classes that each worker builds
stage_context  what a stage function may ask for: `context()`, `empty()`, `SKIP`
dataset_kind   datasets of `torch.utils.data`: what kind one is, and one copy of it per process
batch_iterator lists of consecutive samples
worker_info    what torch's `get_worker_info()` answers
value_kind     what kind of value an item contains
item_fields    the fields of an item, by name or path
extras         the package of an extra, imported where it is needed
imported_torch whether this process uses the torch that it has imported
folded_frames  tracebacks without frames of this package
forks          what a process owns, and its forked children
html_table     a small table for notebooks
lazy           faces of packages that import on first use
lifetime       a process that ends with the one that started it
output_files   checks and replaces files that a user reads later
paths          where the package is installed, and its cache folder
version        the version
warning_filters   Python's warning filters, from the caller to its workers
"""

from typing import TYPE_CHECKING

from stagepipe.core.batch_iterator import BatchIterator, StatefulBatchIterator
from stagepipe.core.code_origin import is_installed
from stagepipe.core.config_syntax import AdviceText, ConfigSyntax, Placeholder, write_advice
from stagepipe.core.dataset_kind import (
    WRAPPED_SAMPLER_ATTRIBUTES,
    build_dataset,
    find_iterator,
    is_stream,
    is_stream_class,
    share_datasets,
)
from stagepipe.core.deferred import Deferred, defer
from stagepipe.core.error_types import get_error_type, name_error_type, with_error_type
from stagepipe.core.errors import (
    ArenaFullError,
    ConfigError,
    Problem,
    ReadOnceError,
    RunError,
    StagepipeError,
    TransportError,
    UsageError,
)
from stagepipe.core.folded_frames import fold_internal_frames, folds_frames, folds_frames_of_methods, warn_user
from stagepipe.core.forks import (
    UserCode,
    end_forked_child,
    end_if_forked,
    fork_lock,
    format_owner_message,
    keep_until_exit,
    register_owner,
    this_process,
)
from stagepipe.core.html_table import make_html_table
from stagepipe.core.imported_torch import (
    call_at_first_use_of_torch,
    get_used_torch,
    reduce_module,
    watch_torch_use,
)
from stagepipe.core.imports import (
    FILE_MODULE_PREFIX,
    TargetError,
    add_import_path,
    closest_file_name,
    closest_match,
    file_exists,
    import_paths,
    import_target,
    is_main_script,
    names_file,
    resolve_file,
    split_target_path,
)
from stagepipe.core.lazy import lazy_names
from stagepipe.core.lifetime import ExitWithoutTeardown, bind_lifetime, exit_if_orphaned
from stagepipe.core.object_paths import find_import_path, get_class_path, get_recorded_module, has_object
from stagepipe.core.output_files import check_output_file, replace_when_written
from stagepipe.core.paths import PACKAGE_DIR, get_cache_dir
from stagepipe.core.stage_context import (
    SKIP,
    Context,
    Skip,
    WorkerIdentity,
    advise_in,
    context,
    derive_seed,
    empty,
    format_setting,
    stage_locals,
)
from stagepipe.core.stateful import load_into_copy, saves_state
from stagepipe.core.stream_position import StreamPosition
from stagepipe.core.targets import (
    build_deferred,
    build_target,
    is_class_or_classmethod,
    is_generator,
    require_callable,
)
from stagepipe.core.units import (
    format_bytes,
    format_ns,
    format_percent,
    format_rate,
    join_names,
    parse_bytes,
    parse_duration_ns,
)
from stagepipe.core.version import DISTRIBUTION, VERSION
from stagepipe.core.warning_filters import WarningFilter, apply_warning_filters, read_warning_filters
from stagepipe.core.worker_info import call_worker_init_fn, set_worker_info, show_worker_info

if TYPE_CHECKING:
    from stagepipe.core.extras import find_install_command, import_extra, install_command
    from stagepipe.core.ids import MAX_EPOCH, MAX_ITEM_NUMBER, Cursor, ImposedSkip, Key, StreamState, split_by_segment
    from stagepipe.core.item_fields import (
        MISSING,
        MissingFieldError,
        find_field,
        get_field,
        list_fields,
        make_missing_error,
        read_fields,
        with_field,
    )
    from stagepipe.core.skip_count import SkipCount
    from stagepipe.core.source_identity import ContentSamples, SourceFiles, SourceIdentity, describe_files, join_files
    from stagepipe.core.value_kind import (
        classify_value,
        get_field_names,
        is_dataclass_instance,
        is_masked_array,
        is_pil_image,
        is_tensor,
        rebuild_dataclass,
    )

__all__ = [
    "DISTRIBUTION",
    "FILE_MODULE_PREFIX",
    "MAX_EPOCH",
    "MAX_ITEM_NUMBER",
    "MISSING",
    "PACKAGE_DIR",
    "SKIP",
    "VERSION",
    "WRAPPED_SAMPLER_ATTRIBUTES",
    "AdviceText",
    "ArenaFullError",
    "BatchIterator",
    "ConfigError",
    "ConfigSyntax",
    "ContentSamples",
    "Context",
    "Cursor",
    "Deferred",
    "ExitWithoutTeardown",
    "ImposedSkip",
    "Key",
    "MissingFieldError",
    "Placeholder",
    "Problem",
    "ReadOnceError",
    "RunError",
    "Skip",
    "SkipCount",
    "SourceFiles",
    "SourceIdentity",
    "StagepipeError",
    "StatefulBatchIterator",
    "StreamPosition",
    "StreamState",
    "TargetError",
    "TransportError",
    "UsageError",
    "UserCode",
    "WarningFilter",
    "WorkerIdentity",
    "add_import_path",
    "advise_in",
    "apply_warning_filters",
    "bind_lifetime",
    "build_dataset",
    "build_deferred",
    "build_target",
    "call_at_first_use_of_torch",
    "call_worker_init_fn",
    "check_output_file",
    "classify_value",
    "closest_file_name",
    "closest_match",
    "context",
    "defer",
    "derive_seed",
    "describe_files",
    "empty",
    "end_forked_child",
    "end_if_forked",
    "exit_if_orphaned",
    "file_exists",
    "find_field",
    "find_import_path",
    "find_install_command",
    "find_iterator",
    "fold_internal_frames",
    "folds_frames",
    "folds_frames_of_methods",
    "fork_lock",
    "format_bytes",
    "format_ns",
    "format_owner_message",
    "format_percent",
    "format_rate",
    "format_setting",
    "get_cache_dir",
    "get_class_path",
    "get_error_type",
    "get_field",
    "get_field_names",
    "get_recorded_module",
    "get_used_torch",
    "has_object",
    "import_extra",
    "import_paths",
    "import_target",
    "install_command",
    "is_class_or_classmethod",
    "is_dataclass_instance",
    "is_generator",
    "is_installed",
    "is_main_script",
    "is_masked_array",
    "is_pil_image",
    "is_stream",
    "is_stream_class",
    "is_tensor",
    "join_files",
    "join_names",
    "keep_until_exit",
    "lazy_names",
    "list_fields",
    "load_into_copy",
    "make_html_table",
    "make_missing_error",
    "name_error_type",
    "names_file",
    "parse_bytes",
    "parse_duration_ns",
    "read_fields",
    "read_warning_filters",
    "rebuild_dataclass",
    "reduce_module",
    "register_owner",
    "replace_when_written",
    "require_callable",
    "resolve_file",
    "saves_state",
    "set_worker_info",
    "share_datasets",
    "show_worker_info",
    "split_by_segment",
    "split_target_path",
    "stage_locals",
    "this_process",
    "warn_user",
    "watch_torch_use",
    "with_error_type",
    "with_field",
    "write_advice",
]

__getattr__ = lazy_names(
    __name__,
    {
        "MAX_EPOCH": "ids",
        "MAX_ITEM_NUMBER": "ids",
        "MISSING": "item_fields",
        "Cursor": "ids",
        "SkipCount": "skip_count",
        "ContentSamples": "source_identity",
        "SourceFiles": "source_identity",
        "SourceIdentity": "source_identity",
        "describe_files": "source_identity",
        "join_files": "source_identity",
        "ImposedSkip": "ids",
        "Key": "ids",
        "MissingFieldError": "item_fields",
        "StreamState": "ids",
        "classify_value": "value_kind",
        "find_field": "item_fields",
        "get_field": "item_fields",
        "get_field_names": "value_kind",
        "find_install_command": "extras",
        "import_extra": "extras",
        "install_command": "extras",
        "is_dataclass_instance": "value_kind",
        "is_masked_array": "value_kind",
        "is_pil_image": "value_kind",
        "is_tensor": "value_kind",
        "list_fields": "item_fields",
        "make_missing_error": "item_fields",
        "read_fields": "item_fields",
        "rebuild_dataclass": "value_kind",
        "split_by_segment": "ids",
        "with_field": "item_fields",
    },
)
