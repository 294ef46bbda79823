"""Streams that save and load their position: torchdata's protocol `Stateful`. In the process that reads them."""

from __future__ import annotations

from typing import Any, Final

_INEXACT_ITERABLE_NAMES: Final = frozenset({"BufferShuffledExamplesIterable"})
"""Parts of a Hugging Face stream whose state leaves out what they hold."""


def saves_state(stream: Any) -> bool:
    """Whether a stream, or its iterator, has `state_dict` and `load_state_dict`, and goes on exactly from a state.

    A Hugging Face stream with a shuffle buffer does not: its state leaves out the buffer, so samples would be lost.

    >>> saves_state([1, 2])
    False
    """
    if not all(callable(getattr(stream, name, None)) for name in ("state_dict", "load_state_dict")):
        return False
    return not type(stream).__module__.startswith("datasets.") or _is_exact_hugging_face_stream(stream)


def load_into_copy(stream: Any, state: Any) -> Any:
    """A copy of a stream with a state loaded. The stream itself still starts at its beginning.

    Some streams keep a loaded state for all their iterations, so one that has loaded a state is used only once. The
    copy is shallow: it shares all that the stream holds.
    """
    try:
        loaded = object.__new__(type(stream))
        vars(loaded).update(vars(stream))  # not copy.copy: a `__getstate__` may share or drop attributes
    except TypeError:  # a class in C, or with slots
        loaded = stream
    loaded.load_state_dict(state)
    return loaded


def _is_exact_hugging_face_stream(stream: Any) -> bool:
    """Whether no part of a Hugging Face stream holds samples that its state leaves out."""
    if getattr(stream, "_formatting", None) is not None:  # Arrow batches of `map` may be skipped
        return False
    parts = [getattr(stream, "_ex_iterable", None)]
    while parts:
        part = parts.pop()
        if type(part).__name__ in _INEXACT_ITERABLE_NAMES:
            return False
        inner = getattr(part, "ex_iterable", None)
        parts += [*getattr(part, "ex_iterables", ()), *([] if inner is None else [inner])]
    return True
