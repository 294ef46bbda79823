"""The position of a stream that saves and loads its own state. In the source's process and inline.

The state goes into the pipeline's state, which is JSON. A state that JSON would change is not used: the stream is then
read from its start again, which gives the same items.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from typing import Any, Final

from stagepipe.core.errors import UsageError
from stagepipe.core.stateful import load_into_copy, saves_state

_log = logging.getLogger("stagepipe")

_MODULES_OF_READ_ONCE_ITERATORS: Final = frozenset({"builtins", "itertools"})
_MAX_STATE_BYTES: Final = 1 << 20
"""A state travels to the caller a few times per second and stands in every saved state of the pipeline."""


class StreamPosition:
    """Opens a stream at its start or at a saved state, and takes its state: that of the stream, its iterator or both.

    >>> position = StreamPosition()
    >>> list(position.open([3, 4], None)), position.is_saved
    ([3, 4], False)
    """

    def __init__(self) -> None:
        self._stream: Any = None
        self._iterator: Any = None
        self._opened: Any = None
        self.is_saved = False
        """Whether `take` may give a state."""

    def open(self, stream: Iterable[Any], state: str | None) -> Iterator[Any]:
        """Iterate over a stream from its start, or from where `state` was taken. As torchdata does: stream first.

        Raises ValueError for a state that this stream cannot load, and UsageError for a stream that gives the same
        generator again.
        """
        saved = {} if state is None else json.loads(state)
        if saves_state(stream) and "stream" in saved:
            stream = load_into_copy(stream, saved["stream"])
        self._stream = stream if saves_state(stream) else None
        iterator = iter(stream)
        self._require_new(iterator, stream)
        self._iterator = iterator if iterator is not stream and saves_state(iterator) else None
        if self._iterator is not None and "iterator" in saved:
            self._iterator.load_state_dict(saved["iterator"])
        own_parts = {"stream": self._stream, "iterator": self._iterator}
        if missing := [name for name in saved if own_parts.get(name) is None]:
            raise ValueError(
                f"the saved state has the state of the {missing[0]}, which {type(stream).__qualname__} cannot load, "
                "because it has no `load_state_dict`; start without the state"
            )
        self.is_saved = self._stream is not None or self._iterator is not None
        return iterator

    def _require_new(self, iterator: Iterator[Any], stream: Iterable[Any]) -> None:
        """Raise UsageError for what was read before and cannot be read again, such as the generator of a first epoch.

        An iterator of the user's class may start again each time that it is asked for.
        """
        samples = getattr(iterator, "samples", iterator)  # of batches of samples
        if samples is self._opened and type(samples).__module__ in _MODULES_OF_READ_ONCE_ITERATORS:
            raise UsageError(
                f"the source {type(stream).__name__} gives the same {type(samples).__name__} for each epoch, which can "
                "be read only once; let its `__iter__` make a new one"
            )
        self._opened = samples

    def take(self) -> str | None:
        """Return the state as JSON; None, after a warning, if it cannot be saved."""
        try:
            return self._take()
        except Exception as error:  # noqa: BLE001 - whatever the user's `state_dict` raises
            self.is_saved = False
            stream = self._iterator if self._stream is None else self._stream
            _log.warning(
                "the state of the stream %s cannot be saved (%s: %s), so a resume reads the stream from its start; let "
                "`state_dict` return a dict of numbers, strings, lists and dicts",
                type(stream).__name__,
                type(error).__name__,
                error,
            )
            return None

    def _take(self) -> str:
        parts = {"stream": self._stream, "iterator": self._iterator}
        state = {name: part.state_dict() for name, part in parts.items() if part is not None}
        text = json.dumps(state, separators=(",", ":"))
        if json.loads(text) != state:
            raise ValueError("JSON would change it: a tuple, or a key that is not a string")
        if len(text) > _MAX_STATE_BYTES:
            raise ValueError(f"it has {len(text)} bytes, and at most {_MAX_STATE_BYTES} can be saved")
        return text
