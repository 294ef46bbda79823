"""Seeds Python's and NumPy's global generators when something first uses them. In workers, installed before user code.

Most items draw nothing, or from one generator only, and seeding both takes longer than passing a small item on. While
a generator waits for its seed, its class is a subclass that seeds it at the first access to an attribute, and gives it
its own class back. So it is seeded before all that draws from it, reads its state or sets it.

A method written in C that is bound already, or called by its class, needs no attribute of its generator. So the
functions of `random` and `numpy.random` look theirs up at each call, reading a generator from its module seeds it, and
a generator to which somebody else holds a reference does not wait: it is seeded before each item.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from sys import getrefcount
from types import ModuleType
from typing import Any, Final, cast

import numpy.random

from stagepipe.core import Key, derive_seed, reduce_module

_numpy_module: Final[Any] = numpy.random.mtrand

_EARLY_DRAWERS: Final = ("random", "getrandbits", "seed")
"""The functions of `random` that may use the generator's state before any attribute of it."""


SeedParts = tuple[int, int, str, Key]
"""What an item's seed is derived from: the run's seed, the epoch, the stage and the item's key."""


class SeededItem:
    """The item that the generators are seeded for."""

    def __init__(self) -> None:
        """Begin without an item."""
        self.parts: SeedParts | None = None

    def derive_seed(self) -> int:
        """Return the item's seed; 0 before the first item."""
        return 0 if self.parts is None else derive_seed(*self.parts)


class LazyGenerator:
    """A global generator that can wait for its seed."""

    def __init__(self, generator: Any, part: Any, seed: Callable[[Any, int], None], item: SeededItem) -> None:
        """`seed` is called with the generator and a seed. Who holds a reference to `part` can draw too."""
        self.generator = generator
        """Of `waiting_class` while it waits for its seed."""
        self._part = part
        self._seed = seed
        self._item = item
        self._own_class = type(generator)
        self._lock = threading.RLock()  # a stage's threads may draw, and on the same thread a signal handler
        self.waiting_class = _make_waiting_class(self._own_class, self.settle)
        self._reference_count = 0

    def take_over(self) -> None:
        """Begin to wait: all references of now are ours. Called where no function on the stack has one."""
        self._reference_count = self._count_references()

    def begin_item(self) -> None:
        """Wait for the first use; seed now where a use could be missed."""
        if self._count_references() > self._reference_count:
            self._seed(self.generator, self._item.derive_seed())
        else:
            self.generator.__class__ = self.waiting_class

    def settle(self) -> None:
        """Seed the generator if it waits."""
        with self._lock:
            while type(self.generator) is self.waiting_class:
                parts = self._item.parts
                self._seed(self.generator, self._item.derive_seed())
                object.__setattr__(self.generator, "__class__", self._own_class)
                if self._item.parts is not parts:  # another thread has begun an item meanwhile
                    self.generator.__class__ = self.waiting_class

    def never_wait(self) -> None:
        """Seed at once from now on."""
        self.settle()
        self._reference_count = 0

    def _count_references(self) -> int:
        return getrefcount(self.generator) + getrefcount(self._part)


def _make_waiting_class(own_class: type, settle: Callable[[], None]) -> type:
    """Return a subclass whose instances call `settle`, which changes their class back, when they are used."""

    class Waiting(own_class):  # type: ignore[misc]  # a base that is known at run time
        __slots__ = ()

        def __getattribute__(self, name: str) -> Any:
            settle()
            return getattr(self, name)

        def __setattr__(self, name: str, value: Any) -> None:
            settle()
            setattr(self, name, value)

    return Waiting


# ---------------------------------------------------------------------- Python's


def make_lazy_random(item: SeededItem) -> LazyGenerator:
    """Make Python's global generator lazy."""
    generator = _get_random()
    for name in _EARLY_DRAWERS:
        setattr(random, name, _make_function(random, name, generator))
    lazy = LazyGenerator(generator, generator, _seed_random, item)
    _settle_at_access(random, "_inst", lazy)
    return lazy


def is_random_shared() -> bool:
    """Whether somebody may hold a method of Python's global generator that draws unseen."""
    return any(_is_held_elsewhere(random, name, 1) for name in _EARLY_DRAWERS)


def _get_random() -> Any:
    return cast("Any", random)._inst  # noqa: SLF001 - it has no public name


def _seed_random(generator: random.Random, seed: int) -> None:
    super(random.Random, generator).seed(seed)  # as `Random.seed` does, without an attribute of the generator
    object.__setattr__(generator, "gauss_next", None)


# ---------------------------------------------------------------------- NumPy's


class _GlobalRandomState(numpy.random.RandomState):
    """NumPy's global generator in a class that can be changed; that of the original cannot."""


def make_lazy_random_state(item: SeededItem) -> LazyGenerator:
    """Replace NumPy's global generator by one that is lazy and continues its state."""
    names = _list_numpy_functions()
    generator = _GlobalRandomState(_numpy_module._rand._bit_generator)  # noqa: SLF001 - they have no public names
    generator.set_state(_numpy_module._rand.get_state(legacy=False))  # noqa: SLF001
    _numpy_module._rand = generator  # noqa: SLF001
    for name in names:
        _numpy_module.__dict__[name] = numpy.random.__dict__[name] = _make_function(numpy.random, name, generator)
    lazy = LazyGenerator(generator, generator._bit_generator, _seed_random_state, item)  # noqa: SLF001
    _stop_at_set_bit_generator(lazy)
    _settle_at_access(_numpy_module, "_rand", lazy)
    return lazy


def is_random_state_shared() -> bool:
    """Whether somebody may hold NumPy's global generator or a method of it."""
    names = _list_numpy_functions()
    holder_count = len(names) + 2  # its methods, its module and the argument
    return getrefcount(_numpy_module._rand) > holder_count or any(  # noqa: SLF001
        _is_held_elsewhere(numpy.random, name, 2) for name in names
    )


def _list_numpy_functions() -> list[str]:
    """Return the functions of `numpy.random` that are methods of the global generator."""
    generator = _numpy_module._rand  # noqa: SLF001
    return [name for name, value in vars(_numpy_module).items() if getattr(value, "__self__", None) is generator]


def _seed_random_state(generator: numpy.random.RandomState, seed: int) -> None:
    numpy.random.RandomState.seed(generator, seed & 0xFFFFFFFF)


def _stop_at_set_bit_generator(lazy: LazyGenerator) -> None:
    """Do not wait once a stage has replaced the bit generator: the references to the new one are not counted."""
    set_bit_generator = _numpy_module.set_bit_generator

    def set_and_stop(bitgen: numpy.random.BitGenerator) -> None:
        lazy.never_wait()
        set_bit_generator(bitgen)

    for module in (_numpy_module, cast("Any", numpy.random)):
        module.set_bit_generator = set_and_stop


# ---------------------------------------------------------------------- both


def _is_held_elsewhere(module: ModuleType, name: str, holder_count: int) -> bool:
    """Whether a function of a module has more than `holder_count` references."""
    return getrefcount(vars(module)[name]) > holder_count + 1  # and the argument


def _settle_at_access(module: ModuleType, name: str, lazy: LazyGenerator) -> None:
    """Settle when the generator is read from its module: it may be passed to a method that is called by its class."""

    def get(self: ModuleType) -> Any:
        lazy.settle()
        return vars(self)[name]

    def set_(self: ModuleType, value: Any) -> None:
        vars(self)[name] = value

    members = {name: property(get, set_), "__reduce__": reduce_module}
    module.__class__ = type("Module", (ModuleType,), members)


def _make_function(module: ModuleType, name: str, generator: Any) -> Callable[..., Any]:
    """Return a function of a module that calls a generator's method, which it looks up each time."""

    def call(*arguments: Any, **keyword_arguments: Any) -> Any:
        return getattr(generator, name)(*arguments, **keyword_arguments)

    call.__doc__ = vars(module)[name].__doc__
    call.__name__ = call.__qualname__ = name
    call.__module__ = module.__name__
    return call
