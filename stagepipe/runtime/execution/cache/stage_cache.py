"""A stage's call with a cache: an output that is kept is read, all others are computed and kept. In workers and inline.

What an entry stands for is in its name: the fingerprint of config, code and data that the plan has, and the item. An
error is never kept.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Generator
from functools import partial
from types import GeneratorType
from typing import Any, Final

from stagepipe.core import Key
from stagepipe.plan import CachePlan
from stagepipe.runtime.execution.cache.entries import EntryFolder, EntryWriter, KeptOutput
from stagepipe.runtime.execution.cache.layout import UncachableOutputError
from stagepipe.runtime.execution.stage import StageRunner
from stagepipe.runtime.execution.stage_error import UncachableResultError
from stagepipe.runtime.protocol import format_key

_NAME_BYTES: Final = 20
_PLAIN_INDEX_TYPES: Final = (int, str)


class StageCache:
    """The kept outputs of one stage in this process."""

    def __init__(self, stage: StageRunner, plan: CachePlan) -> None:
        """Nothing is read yet."""
        self._stage = stage
        self._plan = plan
        self._entries = EntryFolder(plan.folder, stage.name)
        self._begun_epoch = -1

    def call(self, compute: Callable[[Key, list[Any]], Any], key: Key, box: list[Any]) -> Any:
        """Return the kept output of the item in `box`, or what `compute` returns. The box is emptied."""
        stage = self._stage
        name = stage.run_timed(key, partial(self._name_entry, key, box[0]))
        kept = None if name is None else stage.run_timed(key, partial(self._entries.read, name))
        if kept is not None:
            return self._use(kept, key, box)
        if name is None or not self._entries.is_writable:
            return compute(key, box)
        result = compute(key, box)
        if type(result) is GeneratorType:
            return self._keep_parts(name, key, result)
        stage.run_timed(key, partial(self._keep, name, key, result))
        return result

    def _use(self, kept: KeptOutput, key: Key, box: list[Any]) -> Any:
        box.clear()
        self._stage.seed_item(key)
        if kept.is_parts:
            return _iterate(kept.values)
        self._stage.count_item(key)
        return kept.values.pop()

    def _name_entry(self, key: Key, value: Any) -> str | None:
        """Return the name of an item's entry; None where nothing identifies the item."""
        plan, stage = self._plan, self._stage
        number, *parts = stage.global_key(key)
        if plan.identifies_by_input:
            if not _is_plain_index(value):
                return None
            identity = repr(value)
        elif plan.identities is None:
            identity = ""
        else:
            if stage.epoch != self._begun_epoch:
                plan.identities.begin(stage.epoch, stage.seed)
                self._begun_epoch = stage.epoch
            try:
                identity = plan.identities.identify(number)
            except OSError:  # the stage may say what is wrong with the file
                return None
        draw = None if plan.is_deterministic else (stage.epoch, number)
        description = repr((plan.fingerprint, identity, draw, parts))
        return hashlib.blake2b(description.encode(), digest_size=_NAME_BYTES).hexdigest()

    def _keep(self, name: str, key: Key, result: Any) -> None:
        try:
            with self._entries.begin(name) as writer:
                self._add(writer, key, result)
                self._commit(writer, name, key, is_parts=False)
        except OSError as error:
            self._entries.stop_keeping(error)

    def _add(self, writer: EntryWriter, key: Key, value: Any) -> None:
        try:
            writer.add(value)
        except UncachableOutputError as error:
            item = format_key(self._stage.global_key(key))
            raise UncachableResultError(self._stage.name, item, str(error)) from None

    def _commit(self, writer: EntryWriter, name: str, key: Key, *, is_parts: bool) -> None:
        """Put an entry in its place, unless the item's file has changed while the stage worked on it."""
        if self._plan.identities is None or self._name_entry(key, None) == name:
            writer.commit(is_parts=is_parts)

    def _keep_parts(self, name: str, key: Key, parts: GeneratorType[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Yield the parts of a generator. They are kept once it has ended."""
        with contextlib.closing(parts), contextlib.ExitStack() as stack:
            writer = self._begin(name, stack)
            for part in parts:
                if writer is not None:
                    writer = self._write_part(writer, key, part)
                box = [part]
                del part
                yield box.pop()
            if writer is not None:
                self._finish(writer, name, key)

    def _begin(self, name: str, stack: contextlib.ExitStack) -> EntryWriter | None:
        try:
            return stack.enter_context(self._entries.begin(name))
        except OSError as error:
            self._entries.stop_keeping(error)
            return None

    def _write_part(self, writer: EntryWriter, key: Key, part: Any) -> EntryWriter | None:
        """Write a part now, because later stages may change it. Return the writer, if it can be used further."""
        try:
            self._add(writer, key, part)
        except OSError as error:
            self._entries.stop_keeping(error)
            return None
        return writer

    def _finish(self, writer: EntryWriter, name: str, key: Key) -> None:
        try:
            self._commit(writer, name, key, is_parts=True)
        except OSError as error:
            self._entries.stop_keeping(error)


def make_cached_call(
    stage: StageRunner, plan: CachePlan, compute: Callable[[Key, list[Any]], Any]
) -> Callable[[Key, list[Any]], Any]:
    """Return `compute`, which calls a stage with an item, with a cache around it."""
    return partial(StageCache(stage, plan).call, compute)


def _iterate(values: list[Any]) -> Generator[Any, None, None]:
    values.reverse()
    while values:
        yield values.pop()


def _is_plain_index(value: Any) -> bool:
    return type(value) in _PLAIN_INDEX_TYPES or (
        type(value) in {list, tuple} and all(type(inner) in _PLAIN_INDEX_TYPES for inner in value)
    )
