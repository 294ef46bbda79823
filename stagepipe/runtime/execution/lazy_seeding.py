"""Seeds Python's and NumPy's global generators at their first use. In workers permanently, inline temporarily.

Most items draw nothing, or from one generator only, and seeding both takes longer than passing a small item on. A
waiting generator is seeded ("settled") before any code draws from it, reads its state or sets it:

- Replacements of the C functions of `random` and `numpy.random` settle first, because a bound C method uses no
  attribute of its generator. They call the original, so any code may hold one of them.
- While Python's generator waits, its class is a subclass that settles at the first attribute access. So its methods in
  Python need no replacement, regardless of what holds them. The class of NumPy's generator cannot be changed.
- Reading a generator from its module settles it. A generator to which other code holds a reference does not wait.
- If other code imported one of the C functions earlier (`from random import random`), the generator does not wait.

A `Frame` is a period in which a generator is lent to an inline run. The caller's state is saved at the first use in
that period, and restored at its end. Frames nest: a stage may run an inline pipeline.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from sys import getrefcount
from types import ModuleType
from typing import Any, Final, cast

import numpy.random

from stagepipe.core import Key, derive_seed, reduce_module

_numpy_module: Final[Any] = numpy.random.mtrand

_EARLY_DRAWERS: Final = ("random", "getrandbits", "seed")
"""The functions of `random` that may use the generator's state before any attribute of it."""

_NUMPY_FUNCTIONS: Final = ("seed", "sample", "ranf", "get_bit_generator", "set_bit_generator")
"""The functions of `numpy.random` that use the global generator and are not its methods."""


SeedParts = tuple[int, int, str, Key]
"""The values from which an item's seed is derived: the run's seed, the epoch, the stage and the item's key."""


class SeededItem:
    """The item for which the generators are seeded."""

    def __init__(self) -> None:
        """Begin without an item."""
        self.parts: SeedParts | None = None
        self.must_seed = True
        """Whether the next item must do more than set `parts`: a generator does not wait, or torch is seeded too."""

    def derive_seed(self) -> int:
        """Return the item's seed; 0 before the first item."""
        return 0 if self.parts is None else derive_seed(*self.parts)


class Frame:
    """A period in which a generator is lent to an inline run."""

    __slots__ = ("callers_parts", "callers_state", "first_parts", "is_saved", "kept_state", "outer", "was_waiting")

    def __init__(self, callers_parts: SeedParts | None, first_parts: SeedParts | None, kept_state: Any) -> None:
        """`first_parts` and `kept_state` are the item and the state of the run at the end of its last frame."""
        self.callers_parts = callers_parts
        """The item for which the caller's state waits, if the caller is itself a stage."""
        self.first_parts = first_parts
        self.kept_state = kept_state
        self.outer: Frame | None = None
        self.was_waiting = False
        self.is_saved = False
        """Whether the caller's state was saved, because code used the generator in this frame."""
        self.callers_state: Any = None


class LazyGenerator:
    """A global generator that can wait for its seed. Each kind has a class. `is_waiting` is read before each item."""

    def __init__(self, generator: Any, part: Any, item: SeededItem) -> None:
        """Any holder of `generator` or `part` can draw."""
        self.generator = generator
        self.is_waiting = False
        self._part = part
        self._item = item
        self.lock = threading.RLock()  # a stage's threads may draw, and on the same thread a signal handler
        self.frame: Frame | None = None
        """The innermost frame. Without one, the generator waits in a worker for a seed, inline for the next frame."""
        self._replacements: list[tuple[ModuleType, str, Any]] = []
        self._originals: list[tuple[ModuleType, str, Any]] = []
        self._module_class: type | None = None
        self._is_shared = False
        """Whether other code has a path to the generator that reference counts do not show."""
        self._own_references = 0
        self._can_wait = False
        self._install_count = 0
        self.is_permanent = False
        """Whether this is a worker process."""

    # ------------------------------------------------------------------ defined by each kind

    _module: ModuleType
    """The module with the generator."""
    _name: str
    """The generator's name in the module."""
    _method_modules: tuple[ModuleType, ...]
    """The modules with functions that draw from the generator."""

    def seed(self, seed: int) -> None:
        """Seed the generator, without accessing its attributes."""
        raise NotImplementedError

    def _read_state(self) -> Any:
        raise NotImplementedError

    def _write_state(self, state: Any) -> None:
        raise NotImplementedError

    def _list_early_drawers(self) -> Iterator[str]:
        """List the functions that may draw before an attribute access calls `settle`."""
        raise NotImplementedError

    def _wait(self) -> None:
        self.is_waiting = True

    def _stop_waiting(self) -> None:
        self.is_waiting = False
        self._item.must_seed = True

    # ------------------------------------------------------------------ functions of the modules

    def install(self, *, for_good: bool = False) -> None:
        """Replace the functions that draw, until `uninstall`. Calls nest."""
        with self.lock:
            self.is_permanent = self.is_permanent or for_good
            self._install_count += 1
            if self._install_count > 1:
                return
            self._can_wait = not (self._is_held() or self._is_shared or self._has_new_part())
            if not self._replacements:
                self._replacements = [
                    (module, name, _make_function(self, module, name))
                    for name in self._list_early_drawers()
                    for module in self._method_modules
                ]
                self._own_references = self._count_references()
            self._originals = [(module, name, vars(module)[name]) for module, name, _ in self._replacements]
            for module, name, function in self._replacements:
                vars(module)[name] = function
            self._module_class = self._module.__class__
            _settle_at_access(self._module, self._name, self)

    def uninstall(self) -> None:
        """Restore the functions, if this ends the last `install`."""
        with self.lock:
            self._install_count -= 1
            if self._install_count:
                return
            self.settle()
            self._can_wait = False
            for (module, name, original), (_, _, function) in zip(self._originals, self._replacements, strict=True):
                if vars(module)[name] is function:  # else other code has replaced it meanwhile
                    vars(module)[name] = original
            self._originals = []
            if self._module_class is not None:
                self._module.__class__ = self._module_class

    @property
    def can_wait(self) -> bool:
        """Whether no use can be missed, as far as the functions of the modules are concerned."""
        return self._can_wait

    def _is_held(self) -> bool:
        """Whether other code holds a function that draws without settling."""
        holder_count = len(self._method_modules) * (2 if self._replacements else 1)  # the replacement holds one too
        return any(_is_held_elsewhere(self._module, name, holder_count) for name in self._list_early_drawers())

    def _has_new_part(self) -> bool:
        return False

    def never_wait(self) -> None:
        """Seed each item at once from now on."""
        self.settle()
        self._is_shared = True
        self._can_wait = False

    def _count_references(self) -> int:
        return getrefcount(self.generator) + getrefcount(self._part)

    # ------------------------------------------------------------------ items

    def begin_item(self) -> None:
        """Wait for the first use; seed now if a use could be missed."""
        if self._can_wait and self._count_references() <= self._own_references:
            self._wait()
        else:
            self.seed(self._item.derive_seed())

    def settle(self) -> None:
        """Seed the generator if it waits."""
        with self.lock:
            while self.is_waiting:
                parts = self._item.parts
                self._bring(self.frame, parts)
                self._stop_waiting()
                if self._item.parts is not parts:  # another thread has begun an item meanwhile
                    self._wait()

    def _bring(self, frame: Frame | None, parts: SeedParts | None) -> None:
        """Put the generator into the state that the run of a frame needs."""
        if frame is None:
            if self.is_permanent:
                self.seed(0 if parts is None else derive_seed(*parts))
            return  # else the caller uses it
        was_saved = frame.is_saved
        self._save_callers_state(frame)
        if parts is not None and (parts is not frame.first_parts or frame.kept_state is None):
            self.seed(derive_seed(*parts))
        elif frame.kept_state is not None:
            self._write_state(frame.kept_state)
        elif frame.was_waiting:  # the run begins with a copy of the state of a stage that has not drawn
            self._bring(frame.outer, frame.callers_parts)
        elif was_saved:  # a run within this one has used the generator
            self._write_state(frame.callers_state)

    def _save_callers_state(self, frame: Frame | None) -> None:
        if frame is None or frame.is_saved:
            return
        frame.is_saved = True
        if frame.was_waiting:  # the caller is a stage that has not drawn: save the state in the outer frame
            self._save_callers_state(frame.outer)
        else:
            frame.callers_state = self._read_state()

    # ------------------------------------------------------------------ inline

    def lend(self, frame: Frame) -> None:
        """Let the generator wait for its first use in a frame."""
        with self.lock:
            frame.outer = self.frame
            frame.was_waiting = self.is_waiting and (self.is_permanent or self.frame is not None)
            self.frame = frame
            if not self.is_waiting:
                self._wait()
            if not self._can_wait or self._count_references() > self._own_references:
                self.settle()

    def take_back(self, frame: Frame, *, keeps_state: bool) -> Any:
        """End a frame and restore the caller's state. Returns the state to continue from, if the run `keeps_state`."""
        with self.lock:
            kept_state = None
            if keeps_state and not self.is_waiting:
                kept_state = self._read_state()
            elif keeps_state and self._item.parts is frame.first_parts:
                kept_state = frame.kept_state
            if self.frame is not frame:  # it belongs to a run on another thread, which continues
                self._unlink(frame)
                return kept_state
            self.frame = frame.outer
            if frame.was_waiting:
                if not self.is_waiting:
                    self._wait()
            elif frame.is_saved:
                self._stop_waiting()
                self._write_state(frame.callers_state)
            elif frame.outer is not None or self.is_permanent:
                self._stop_waiting()
            return kept_state  # outside all frames it keeps waiting: for the next frame, or for the caller

    def _unlink(self, frame: Frame) -> None:
        above = self.frame
        while above is not None and above.outer is not frame:
            above = above.outer
        if above is None:
            return
        above.outer = frame.outer
        above.callers_parts = frame.callers_parts
        above.was_waiting = frame.was_waiting
        if frame.is_saved:
            above.is_saved = True
            above.callers_state = frame.callers_state


# ---------------------------------------------------------------------- Python's generator


class LazyRandom(LazyGenerator):
    """Python's global generator."""

    _module = random
    _name = "_inst"
    _method_modules = (random,)

    def __init__(self, item: SeededItem) -> None:
        """Wrap the generator of this process."""
        generator = cast("Any", random)._inst  # noqa: SLF001 - it has no public name
        super().__init__(generator, generator, item)
        self._own_class = type(generator)
        self._waiting_class = _make_waiting_class(self._own_class, self.settle)

    def seed(self, seed: int) -> None:
        """Seed as `Random.seed` does, without accessing the generator's attributes."""
        generator: random.Random = self.generator
        super(random.Random, generator).seed(seed)
        object.__setattr__(generator, "gauss_next", None)

    def _read_state(self) -> Any:
        generator: random.Random = self.generator
        return super(random.Random, generator).getstate(), object.__getattribute__(generator, "gauss_next")

    def _write_state(self, state: Any) -> None:
        generator: random.Random = self.generator
        super(random.Random, generator).setstate(state[0])
        object.__setattr__(generator, "gauss_next", state[1])

    def _list_early_drawers(self) -> Iterator[str]:
        return iter(_EARLY_DRAWERS)

    def _wait(self) -> None:
        self.is_waiting = True
        object.__setattr__(self.generator, "__class__", self._waiting_class)

    def _stop_waiting(self) -> None:
        object.__setattr__(self.generator, "__class__", self._own_class)
        super()._stop_waiting()


def _make_waiting_class(own_class: type, settle: Callable[[], None]) -> type:
    """Return a subclass whose instances call `settle` when they are used; `settle` restores their class."""

    class Waiting(own_class):  # type: ignore[misc]  # a base that is known at run time
        __slots__ = ()

        def __getattribute__(self, name: str) -> Any:
            settle()
            return getattr(self, name)

        def __setattr__(self, name: str, value: Any) -> None:
            settle()
            setattr(self, name, value)

    return Waiting


# ---------------------------------------------------------------------- NumPy's generator


class LazyRandomState(LazyGenerator):
    """NumPy's global generator. Its class cannot be changed, so all functions that draw are replaced."""

    _module = _numpy_module
    _name = "_rand"
    _method_modules = (_numpy_module, numpy.random)

    def __init__(self, item: SeededItem) -> None:
        """Wrap the generator of this process."""
        generator = vars(_numpy_module)["_rand"]
        self._methods = [
            name for name, value in vars(_numpy_module).items() if getattr(value, "__self__", None) is generator
        ]
        super().__init__(generator, generator._bit_generator, item)  # noqa: SLF001 - they have no public names
        own_references = len(self._methods) + 4  # its methods, its module, two of ours and the argument
        self._is_shared = getrefcount(generator) > own_references

    def seed(self, seed: int) -> None:
        """Seed as `numpy.random.seed` does."""
        self.generator.seed(seed & 0xFFFFFFFF)

    def _read_state(self) -> Any:
        return self.generator.get_state(legacy=False), self.generator._bit_generator  # noqa: SLF001

    def _write_state(self, state: Any) -> None:
        values, bit_generator = state
        if self.generator._bit_generator is not bit_generator:  # noqa: SLF001
            _numpy_module.set_bit_generator(bit_generator)
        self.generator.set_state(values)

    def _list_early_drawers(self) -> Iterator[str]:
        yield from self._methods
        yield from _NUMPY_FUNCTIONS

    def _has_new_part(self) -> bool:
        """Whether the bit generator was replaced. References to the new one are not counted."""
        return self.generator._bit_generator is not self._part  # noqa: SLF001


# ---------------------------------------------------------------------- both generators


def _is_held_elsewhere(module: ModuleType, name: str, holder_count: int) -> bool:
    """Whether a function of a module has more than `holder_count` references."""
    return getrefcount(vars(module)[name]) > holder_count + 1  # plus the argument


def _settle_at_access(module: ModuleType, name: str, lazy: LazyGenerator) -> None:
    """Settle when the generator is read from its module: it may be passed to a method that is called by its class."""

    def get(self: ModuleType) -> Any:
        lazy.settle()
        return vars(self)[name]

    def set_(self: ModuleType, value: Any) -> None:
        vars(self)[name] = value

    members = {name: property(get, set_), "__reduce__": reduce_module}
    module.__class__ = type("Module", (ModuleType,), members)


def _make_function(lazy: LazyGenerator, module: ModuleType, name: str) -> Callable[..., Any]:
    """Return a function that settles the generator before it calls a function of a module."""
    original = vars(module)[name]

    def call(*arguments: Any, **keyword_arguments: Any) -> Any:
        if lazy.is_waiting:
            lazy.settle()
        return original(*arguments, **keyword_arguments)

    def call_and_stop(*arguments: Any) -> Any:
        lazy.never_wait()  # references to the new bit generator are not counted
        return original(*arguments)

    function = call_and_stop if name == "set_bit_generator" else call
    function.__doc__ = original.__doc__
    function.__name__ = function.__qualname__ = name
    function.__module__ = module.__name__
    return function
