"""`ShardOutput`: takes the parts that the workers of sinks have written, and commits them in order, exactly once.

Runs in the main process of a run. At least every half second, it makes all parts so far durable: first the files, then
their names, then a record in the journal with the state of the pipeline after the last of these parts. After a kill or
a power failure, `resume` restores the folders and the pipeline to that record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, Final

from stagepipe.api.pipeline import Pipeline
from stagepipe.core import RunError, UsageError, build_target
from stagepipe.engine import decode_dead_letters, describe_stage_code, encode_dead_letters, find_changed_code
from stagepipe.report import DeadLetter
from stagepipe.runtime import format_error, format_user_traceback
from stagepipe.shards import Journal, JournalRecord, LetterFile, SinkFolder, open_folder
from stagepipe.sinks import Part, PartSink
from stagepipe.spec import PipelineSpec, SinkSpec

_log = logging.getLogger("stagepipe")

_MAX_COMMIT_INTERVAL_S: Final = 0.5
"""Maximum time between commits. After a kill, the work of this time is repeated."""
_INTERVAL_COMMITS: Final = 20
"""A commit waits some milliseconds for the disk. This interval limits commits to a twentieth of a run's time."""


def has_part_sinks(spec: PipelineSpec) -> bool:
    """Return whether a sink of the config has workers."""
    return any(sink.writes_parts for sink in spec.sinks)


@contextmanager
def open_shards(
    pipeline: Pipeline, *, resume: bool = False, allow_changed: bool = False
) -> Iterator[ShardOutput | None]:
    """Open the shards of the pipeline's sinks, and close them at the end; None if no sink has workers."""
    if not has_part_sinks(pipeline.spec):
        yield None
        return
    with closing(ShardOutput(pipeline, resume=resume, allow_changed=allow_changed)) as shards:
        yield shards


class ShardOutput:
    """The shards of all sinks of a run, and their journal. A context manager: closing releases the folders."""

    def __init__(self, pipeline: Pipeline, *, resume: bool = False, allow_changed: bool = False) -> None:
        """Lock the folders, and start a new job in them, or `resume` the job in the journal.

        Raises UsageError if a folder is in use, or is not empty and has no journal; if there is a journal and `resume`
        is false; if `resume` is true and the config has changed, or a shard is missing, even if the job has finished.
        In these cases nothing is changed.
        """
        pipeline.feed_sinks()
        self._pipeline = pipeline
        self._folders: list[SinkFolder] = []
        self._opened = ExitStack()  # the folders' locks, and the journal
        self.items_delivered = 0
        """Items in the parts so far, including earlier runs of the job."""
        self._items_before = 0  # items in earlier runs
        self._unwritten_letters: list[DeadLetter] = []
        self.is_finished = False
        """Whether an earlier run has written all items."""
        self._next_commit_s = monotonic()
        self._code = describe_stage_code(pipeline.spec)
        try:
            self._open(resume=resume, allow_changed=allow_changed)
        except BaseException:
            self.close()
            raise

    def _open(self, *, resume: bool, allow_changed: bool) -> None:
        spec = self._pipeline.spec
        sinks = [build_part_sink(sink, spec.config_dir) for sink in spec.sinks if sink.writes_parts]
        _require_own_folders(sinks)
        for sink in sinks:
            self._folders.append(self._opened.enter_context(closing(open_folder(sink, type(sink).__name__))))
        self._journal = self._opened.enter_context(closing(Journal(self._folders[0].path)))
        self._letters = LetterFile(self._folders[0].path)
        record = None
        if resume or self._journal.exists:
            record = self._load_record(sinks, resume=resume)
        if record is None:
            self._start_job()
            return
        self._load_state(record, allow_changed=allow_changed)
        self._pipeline.earlier_dead_letters = decode_dead_letters(self._letters.restore(record.letters_bytes))
        if not record.has_all_items:
            self._warn_of_changed_code(record)
        self.is_finished = record.is_finished
        if record.is_finished:
            for folder, position, shards in zip(self._folders, record.positions, record.finished_shards, strict=True):
                folder.require_whole(position, shards)
        else:
            self._resume_job(record)
            if record.has_all_items:  # a run was killed between its last two records
                self._complete()
                self.is_finished = True

    def _load_record(self, sinks: list[PartSink], *, resume: bool) -> JournalRecord | None:
        """Return the record to resume, or None to start a new job. Raises UsageError if neither is allowed."""
        if not sinks[0].overwrite and self._has_no_progress(len(sinks)):
            return None  # for example after a wrong path of the source: the next run has another config
        if resume:
            return self._journal.load(len(sinks))
        self._require_overwrite(sinks[0])
        return None

    def _has_no_progress(self, sink_count: int) -> bool:
        """Return whether the job ended before its first item, and the folders contain nothing else."""
        try:
            record = self._journal.load(sink_count)
        except UsageError:
            return False
        is_at_start = record is not None and _get_position(record.state) == _get_position(self._pipeline.state_dict())
        return is_at_start and all(folder.is_unused() for folder in self._folders)

    def _require_overwrite(self, sink: PartSink) -> None:
        if not sink.overwrite:
            raise UsageError(
                f"the folder {sink.path.absolute()} has the shards of an earlier run; add --resume to continue it, "
                "set another `path`, or `overwrite: true` to delete them"
            )

    def _start_job(self) -> None:
        for folder in self._folders[0 if not self._journal.exists else 1 :]:
            folder.require_empty()
        recorded_names: dict[Path, set[str]] = {}
        for folder in self._folders:
            for path, names in Journal(folder.path).list_names().items():
                recorded_names.setdefault(path, set()).update(names)
        for folder in self._folders:
            own_names = recorded_names.get(folder.path.resolve(), ())
            folder.require_own(own_names)
            folder.require_unread(own_names, self._pipeline.spec.source.target.arguments)
        if self._journal.exists:
            self._journal.delete()  # first, because the files that it lists are deleted next
        self._letters.delete()
        for folder in self._folders:
            folder.start(recorded_names.get(folder.path.resolve(), ()))
        self._journal.start(self._folder_paths, self._make_record())

    def _load_state(self, record: JournalRecord, *, allow_changed: bool) -> None:
        try:
            self._pipeline.load_state_dict(record.state, allow_changed=allow_changed)
        except UsageError as error:
            raise UsageError(f"--resume {self._folders[0].path}: {error}") from error

    def _warn_of_changed_code(self, record: JournalRecord) -> None:
        if changed := find_changed_code(record.code, self._code):
            _log.warning(
                "the code has changed since the last run of this job: %s; the shards hold rows of the old code up "
                "to item %d, and rows of the new code after it",
                ", ".join(changed),
                record.items,
            )

    def _resume_job(self, record: JournalRecord) -> None:
        for folder, position, shards in zip(self._folders, record.positions, record.finished_shards, strict=True):
            folder.restore(position, shards)
        self.items_delivered = self._items_before = record.items
        self._journal.start(self._folder_paths, record)

    @property
    def finished_message(self) -> str:
        """The message for a job that an earlier run has finished."""
        return (
            f"{self._folders[0].path}: this run has finished; to run it again, set `overwrite: true`, without --resume"
        )

    @property
    def _folder_paths(self) -> list[Path]:
        return [folder.path for folder in self._folders]

    def _make_record(self, *, has_all_items: bool = False, is_finished: bool = False) -> JournalRecord:
        """Make all parts so far durable, and return a record of them."""
        commits = [folder.commit() for folder in self._folders]
        self._unwritten_letters += self._pipeline.take_dead_letters()
        self._letters.append(encode_dead_letters(self._unwritten_letters))
        self._unwritten_letters.clear()  # an interrupted commit writes letters twice, and readers skip duplicates
        return JournalRecord(
            state=self._pipeline.state_dict(),
            items=self.items_delivered,
            positions=[position for position, _ in commits],
            finished_shards=[shards for _, shards in commits],
            has_all_items=has_all_items,
            is_finished=is_finished,
            code={place: digest for place, (_, digest) in self._code.items()},
            letters_bytes=self._letters.size_bytes,
        )

    def count_written(self) -> tuple[int, int]:
        """Return the number of items that this run has written, and of all files, including those of earlier runs."""
        return self.items_delivered - self._items_before, sum(folder.count_files() for folder in self._folders)

    def add(self, part: Part) -> None:
        """Add the next part. Raises RunError if it cannot be written."""
        for folder, record in zip(self._folders, part.records, strict=True):
            try:
                folder.add(record)
            except (OSError, ValueError, TypeError) as error:
                message = f"sink {folder.path}: item {self.items_delivered} and after: {format_error(error)}"
                raise RunError(message, stage="sink", worker=0, trace=format_user_traceback(error)) from error
        self.items_delivered += part.item_count

    def commit_if_due(self) -> None:
        """Commit if the last commit was long enough ago: half a second, or less on a fast disk."""
        if monotonic() >= self._next_commit_s:
            self.commit()

    def commit(self) -> None:
        """Make all parts so far durable. The pipeline must have yielded exactly these parts."""
        started_s = monotonic()
        self._append_record()
        ended_s = monotonic()
        self._next_commit_s = ended_s + min(_INTERVAL_COMMITS * (ended_s - started_s), _MAX_COMMIT_INTERVAL_S)

    def finish(self) -> None:
        """Finish the open shards and the job, when the pipeline has no more parts."""
        for folder in self._folders:
            folder.finish()
        self._append_record(has_all_items=True)
        self._complete()

    def _complete(self) -> None:
        """Give the shards their final names, and finish the job. The journal must have all items."""
        for folder in self._folders:
            folder.complete()
        self._append_record(has_all_items=True, is_finished=True)

    def _append_record(self, *, has_all_items: bool = False, is_finished: bool = False) -> None:
        self._journal.append(self._make_record(has_all_items=has_all_items, is_finished=is_finished))
        for folder in self._folders:
            folder.mark_recorded()
        self._pipeline.count_files(self.count_written()[1])

    def close(self) -> None:
        """Close the journal, and release the folders."""
        self._opened.close()


def build_part_sink(sink: SinkSpec, config_dir: Path | None) -> PartSink:
    """Build a sink in this process, which makes the shards. Raises RunError, and UsageError if it is no `PartSink`."""
    built = build_sink(lambda: build_target(sink.target.uses, sink.target.arguments, config_dir))
    if isinstance(built, PartSink):
        return built
    raise UsageError(
        f"sink: `{sink.target.label}` has `writes_parts`, but is not a subclass of stagepipe.sinks.PartSink"
    )


def build_sink(make: Callable[[], Any]) -> Any:
    """Build a sink in this process. Raises RunError for any error."""
    try:
        return make()
    except Exception as error:
        message = f"sink: cannot be built: {format_error(error)}"
        raise RunError(message, stage="sink", worker=0, trace=format_user_traceback(error)) from error


def _get_position(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the position in a state: the entries of its ranks."""
    return {key: value for key, value in state.items() if key.startswith("rank")}


def _require_own_folders(sinks: list[PartSink]) -> None:
    seen: set[Path] = set()
    for sink in sinks:
        path = sink.path.resolve()
        if path in seen:
            raise UsageError(f"two sinks write to the folder {sink.path}; give each its own `path`")
        seen.add(path)
