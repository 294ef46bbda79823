"""Seeds the random generators before each item, so that any library's augmentations are reproducible.

In workers and inline. The generators of Python, NumPy and torch are global; Python's and NumPy's wait for their first
use (see `lazy_seeding`). A stage may have its own generators, which global seeds do not reach. They are found by a walk
of the objects that the stage reaches: attributes, containers, closures, and the globals that its code names. The walk
calls no property or method of user code.

Inline, the caller's global generators are separate from the run's. Python's and NumPy's are lent to the run while its
stages work: their states are saved and restored only if code used them. torch's state is saved and restored each time
once torch is imported, which takes 1 us.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from itertools import chain, islice
from types import (
    BuiltinMethodType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    NoneType,
)
from typing import Any, Final

import numpy as np

from stagepipe.core import Context, call_at_first_use_of_torch, derive_seed, get_used_torch, is_installed, stage_locals
from stagepipe.runtime.execution.lazy_seeding import Frame, LazyRandom, LazyRandomState, SeededItem, SeedParts

_MAX_OBJECTS: Final = 20_000
"""The objects that the walk visits, nearest first. This many take some tens of milliseconds."""

_MAX_ELEMENTS: Final = 1_000
"""The elements of a container that the walk visits, so that a list of a million paths costs little."""

_LEAF_TYPES: Final = (
    *(NoneType, int, float, complex, str, bytes, bytearray, range, slice, type(...), np.ndarray, np.dtype),
    *(GetSetDescriptorType, MemberDescriptorType, ModuleType, CodeType),
)
"""Types of values from which no other object is reached."""

_HEAP_TYPE_FLAG: Final = 1 << 9
"""Set on classes that a `class` statement makes. https://docs.python.org/3/c-api/typeobj.html"""

_SEQUENCE_TYPES: Final[tuple[Any, ...]] = (list, tuple, set, frozenset, deque)


def iter_reachable(root: Any, is_wanted: Callable[[Any], bool]) -> Iterator[Any]:
    """Yield each wanted object that `root` reaches, once, the nearest first.

    Objects inside a wanted object are not wanted, because it manages its own parts; but the user's functions in it are
    walked as usual. Modules, arrays, tensors and the code of installed packages are not walked.

    >>> list(iter_reachable({"a": [1, {2.5j, Ellipsis}, (print,)]}, lambda value: value is print))
    [<built-in function print>]
    """
    queue: deque[tuple[Any, bool]] = deque([(root, False)])
    visited: dict[tuple[int, bool], Any] = {}  # keeps the objects alive, so that no id is used twice
    leaf_types = (*_LEAF_TYPES, getattr(get_used_torch(), "Tensor", ModuleType))
    while queue and len(visited) < _MAX_OBJECTS:
        value, is_inside_wanted = queue.popleft()
        is_inside_wanted = is_inside_wanted and not _is_own_function(value)
        if (id(value), is_inside_wanted) in visited:
            continue
        visited[id(value), is_inside_wanted] = value
        if is_wanted(value):
            if not is_inside_wanted:
                yield value
            is_inside_wanted = True
        children = (child for child in _list_children(value) if not issubclass(type(child), leaf_types))
        queue.extend((child, is_inside_wanted) for child in islice(children, max(0, _MAX_OBJECTS - len(queue))))


def _list_children(value: Any) -> list[Any]:
    cls = type(value)  # not `isinstance`, which asks an object for its `__class__`, possibly a property
    if issubclass(cls, FunctionType):
        return list(_iter_function(value))
    if issubclass(cls, MethodType):
        return [value.__self__, value.__func__]
    if issubclass(cls, BuiltinMethodType):
        return [value.__self__]
    if issubclass(cls, type):
        return list(_iter_class(value))
    children = [cls, *_list_elements(value), *_list_attributes(value)]
    if issubclass(cls, partial):
        children += [value.func, *value.args, *value.keywords.values()]
    return children


def _list_elements(value: Any) -> list[Any]:
    """Return the first elements of a container, iterated by its built-in type."""
    if issubclass(type(value), dict):
        return list(islice(dict.values(value), _MAX_ELEMENTS))
    container_type = next((cls for cls in _SEQUENCE_TYPES if issubclass(type(value), cls)), None)
    return [] if container_type is None else list(islice(container_type.__iter__(value), _MAX_ELEMENTS))


def _list_attributes(value: Any) -> list[Any]:
    """Return the values in an object's `__dict__` and slots."""
    attributes: list[Any] = []
    with suppress(Exception):  # it has none, or a class in C handles the access differently
        attributes += islice(object.__getattribute__(value, "__dict__").values(), _MAX_ELEMENTS)
    slots = (base.__dict__.values() for base in type(value).__mro__ if "__slots__" in base.__dict__)
    for member in chain.from_iterable(slots):
        with suppress(AttributeError):  # not set
            attributes += [member.__get__(value)] if type(member) is MemberDescriptorType else []
    return attributes


def _iter_class(cls: type) -> Iterator[Any]:
    """Yield the methods and attributes of a class and its bases, except those of installed packages.

    Sorted by name, because a class that was sent to a worker may have them in another order.
    """
    for base in cls.__mro__:
        if base.__flags__ & _HEAP_TYPE_FLAG and not is_installed(base.__module__):
            for _, value in sorted(base.__dict__.items()):
                yield from _unwrap(value)


def _unwrap(value: Any) -> tuple[Any, ...]:
    """Return the functions inside a class attribute, or the attribute."""
    if isinstance(value, staticmethod | classmethod):
        return (value.__func__,)
    if isinstance(value, property):
        return (value.fget,)
    return (value.func,) if isinstance(value, cached_property) else (value,)


def _iter_function(function: FunctionType) -> Iterator[Any]:
    """Yield the objects in a function's closure, defaults, attributes and code."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not set yet
            continue
    yield from chain(function.__defaults__ or (), (function.__kwdefaults__ or {}).values(), function.__dict__.values())
    if _is_own_function(function):
        yield from _iter_globals(function)


def _is_own_function(value: Any) -> bool:
    """Whether a value is a function that no installed package defines."""
    if not issubclass(type(value), FunctionType):
        return False
    return not is_installed(str(value.__globals__.get("__name__", value.__module__)))


def _iter_globals(function: FunctionType) -> Iterator[Any]:
    """Yield the globals that a function's code names, including those in the user's modules: `settings.rng`."""
    names = list(dict.fromkeys(_iter_names(function.__code__)))
    namespaces, modules = [function.__globals__], set[int]()
    while namespaces:
        namespace = namespaces.pop()
        for value in (namespace.get(name) for name in names):
            if type(value) is not ModuleType:
                yield value
            elif id(value) not in modules and not is_installed(value.__name__):
                modules.add(id(value))
                namespaces.append(vars(value))


def _iter_names(code: CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in `code` and in the code nested in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _iter_names(constant)


_SEED_STEP: Final = 0x9E3779B97F4A7C15
"""The distance between the seeds of two generators: odd, so that the lower 32 bits differ too. From SplitMix64."""

_SEED_MASK: Final = 2**64 - 1

Seeder = Callable[[int], Any]
"""Seeds a generator with an integer of 64 bits."""


def find_own_generators(target: Any) -> Seeder | None:
    """Return a function that seeds every generator that `target` reaches, each differently; None if there is none.

    It finds `random.Random`, NumPy's `Generator`, `BitGenerator` and `RandomState`, `torch.Generator`, and objects with
    a method `set_random_seed`, such as the transforms of albumentations (2.0 and later). Call the function before each
    item with the item's seed: an item then has the same draws in any worker and after a resume. Generators are numbered
    in the order in which they are found, so every process must find them in the same order.

    >>> find_own_generators(print) is None
    True
    >>> rng = random.Random()
    >>> seed = find_own_generators({"transform": [rng]})
    >>> seed(3), rng.random(), seed(3), rng.random()
    (None, 0.7248056413076998, None, 0.7248056413076998)
    """
    seeders = list(_iter_seeders(target))
    return partial(_seed_each, seeders) if seeders else None


def _seed_each(seeders: list[Seeder], seed: int) -> None:
    for seed_generator in seeders:
        seed = (seed + _SEED_STEP) & _SEED_MASK  # not the seed itself, which the global generators use
        seed_generator(seed)


def _iter_seeders(target: Any) -> Iterator[Seeder]:
    """Yield a seeder for each generator that `target` reaches, once."""
    seeded_ids = _list_global_generator_ids()
    for value in iter_reachable(target, is_seedable):
        generator = value.bit_generator if isinstance(value, np.random.Generator) else value
        if id(generator) not in seeded_ids:
            seeded_ids.add(id(generator))
            yield _make_seeder(generator)


def is_seedable(value: Any) -> bool:
    """Whether a value is a random generator, or an object that seeds its own generators.

    >>> is_seedable(random.Random()), is_seedable(random.SystemRandom()), is_seedable(3)
    (True, False, False)
    """
    cls = type(value)
    if issubclass(cls, random.SystemRandom):  # draws from the operating system
        return False
    return issubclass(cls, _get_generator_types()) or any("set_random_seed" in base.__dict__ for base in cls.__mro__)


def _get_generator_types() -> tuple[type, ...]:
    """Return the types of generators. torch's type is known only after the import of torch."""
    torch_type = getattr(get_used_torch(), "Generator", None)
    numpy_types = (np.random.Generator, np.random.BitGenerator, np.random.RandomState)
    return (random.Random, *numpy_types) if torch_type is None else (random.Random, *numpy_types, torch_type)


def _list_global_generator_ids() -> set[int]:
    """Return the ids of the generators that are seeded as global ones."""
    numpy_state = np.random.mtrand._rand  # noqa: SLF001 - it has no public name
    generators = [random._inst, numpy_state, np.random.__dict__["get_bit_generator"]()]  # noqa: SLF001
    generators.append(getattr(get_used_torch(), "default_generator", None))
    generators += getattr(get_used_torch("torch.cuda"), "default_generators", ())
    return set(map(id, generators))


def _make_seeder(generator: Any) -> Seeder:
    if isinstance(generator, np.random.BitGenerator):
        return partial(_seed_bit_generator, generator)
    if isinstance(generator, np.random.RandomState):
        bit_generator = generator._bit_generator  # noqa: SLF001 - it has no public name
        if not isinstance(bit_generator, np.random.MT19937):
            return partial(_seed_bit_generator, bit_generator)
        return lambda seed: generator.seed(seed & 0xFFFFFFFF)
    if isinstance(generator, random.Random):
        return generator.seed
    if hasattr(type(generator), "set_random_seed"):
        return lambda seed: generator.set_random_seed(seed & 0xFFFFFFFF)
    return generator.manual_seed  # type: ignore[no-any-return]  # torch's


def _seed_bit_generator(generator: np.random.BitGenerator, seed: int) -> None:
    generator.state = type(generator)(seed).state


seeded_item: Final = SeededItem()
lazy_random: Final = LazyRandom(seeded_item)
lazy_random_state: Final = LazyRandomState(seeded_item)


def install_lazy_seeding() -> bool:
    """Seed Python's and NumPy's generators at their first use from now on. Returns whether that is exact for both.

    Call it in a worker process before the import of user code: if other code imported one of its functions earlier, a
    generator is seeded before each item.
    """
    lazy_random.install(for_good=True)
    lazy_random_state.install(for_good=True)
    call_at_first_use_of_torch(_seed_used_torch)
    return lazy_random.can_wait and lazy_random_state.can_wait


def _begin_fork() -> None:
    """Prevent threads from changing a generator during a fork, so that parent and child draw the same."""
    for lazy in (lazy_random, lazy_random_state):
        lazy.lock.acquire()
        lazy.settle()


def _end_fork() -> None:
    lazy_random_state.lock.release()
    lazy_random.lock.release()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_begin_fork, after_in_parent=_end_fork, after_in_child=_end_fork)


def _seed_used_torch() -> None:
    """Seed a torch that the fork server imported, when a stage first uses it."""
    seeded_item.must_seed = True
    if seeded_item.parts is not None:
        _seed_torch(seeded_item.derive_seed())


def make_global_seeder() -> Callable[[SeedParts], None]:
    """Return the function that seeds the global generators for an item: at their first use, if they can wait."""
    item, random_, random_state, modules = seeded_item, lazy_random, lazy_random_state, sys.modules
    seed_torch: Callable[[int], None] | None = None

    def seed_lazily(parts: SeedParts) -> None:
        nonlocal seed_torch
        item.parts = parts
        item.must_seed = False  # before the checks: a use by another thread sets it again
        if not random_.is_waiting:
            random_.begin_item()
        if not random_state.is_waiting:
            random_state.begin_item()
        if seed_torch is not None:
            seed_torch(derive_seed(*parts))
        elif "torch" in modules and get_used_torch() is not None:  # most processes have no torch, and skip the call
            _seed_torch(derive_seed(*parts))
            seed_torch = _make_torch_seeder()
        if seed_torch is not None or not (random_.is_waiting and random_state.is_waiting and _will_notice_torch()):
            item.must_seed = True

    return seed_lazily


def _seed_torch(seed: int) -> None:
    """Seed torch's generators, except in the middle of torch's import.

    The default generator is seeded directly, in 1 us: `torch.manual_seed` takes 70 us, because it looks for every kind
    of accelerator. CUDA's generators are seeded from a stage's first use of CUDA on.
    """
    generator = getattr(sys.modules["torch"], "default_generator", None)
    if generator is None:
        return
    generator.manual_seed(seed)
    cuda = sys.modules.get("torch.cuda")
    if cuda is not None:
        _seed_cuda(cuda, seed)


def _make_torch_seeder() -> Callable[[int], None] | None:
    """Return a faster `_seed_torch`; None before the first call of `_seed_torch` after torch's import."""
    cuda: Any = sys.modules.get("torch.cuda")
    tracker: Any = getattr(cuda, "_lazy_seed_tracker", None)
    queued_call = getattr(tracker, "manual_seed_all_cb", None)
    if queued_call is None:
        return None
    manual_seed = sys.modules["torch"].default_generator.manual_seed

    def seed_torch(seed: int) -> None:
        manual_seed(seed)
        if cuda._initialized or tracker.manual_seed_all_cb is not queued_call:  # noqa: SLF001 - as in `_seed_cuda`
            _seed_cuda(cuda, seed)

    return seed_torch


def _seed_cuda(cuda: Any, seed: int) -> None:
    """Seed CUDA's generators, or schedule that for the start of CUDA."""
    if cuda.is_initialized():
        cuda.manual_seed_all(seed)
        return
    queued_call = cuda._lazy_seed_tracker.manual_seed_all_cb  # noqa: SLF001 - it has no public name
    if queued_call is None or queued_call[0] is not _seed_cuda_devices:
        # Replaces a seed that was set while the stage was built. Takes 0.1 ms, so it is done once, not for each item.
        cuda._lazy_call(_seed_cuda_devices, seed_all=True)  # noqa: SLF001 - `manual_seed_all` does it too


def _seed_cuda_devices() -> None:
    """Seed CUDA's generators when CUDA starts while a stage works on an item, so that its draws are reproducible.

    It seeds each device, because `manual_seed_all` would only queue another call while CUDA starts.
    """
    for generator in sys.modules["torch.cuda"].default_generators:
        generator.manual_seed(seeded_item.derive_seed())


class _TorchImportSeeder(importlib.abc.MetaPathFinder):
    """Seeds torch when a stage imports it while working on an item, so that the item's draws are reproducible."""

    initial_state: Any = None
    """The state of torch's generator after the import, before it was seeded."""
    is_for_frames = False
    """Whether it seeds only while an inline run has a frame. Otherwise the caller's own code imports torch."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find torch as the other finders do, with a loader that seeds it after the import."""
        if name != "torch" or self not in sys.meta_path:
            return None
        seeded_item.must_seed = True
        if self.is_for_frames and lazy_random.frame is None:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            exec_module = spec.loader.exec_module

            def exec_module_and_seed(module: ModuleType) -> None:
                exec_module(module)
                _TorchImportSeeder.initial_state = module.default_generator.get_state()
                _seed_torch(seeded_item.derive_seed())

            spec.loader.exec_module = exec_module_and_seed  # type: ignore[method-assign]
        return spec


def install_torch_import_hook() -> None:
    """Seed torch at its first import, unless it is imported already."""
    if "torch" not in sys.modules and not _has_torch_import_hook():
        sys.meta_path.insert(0, _TorchImportSeeder())


def _will_notice_torch() -> bool:
    """Whether a first import or use of torch sets `seeded_item.must_seed`."""
    return _has_torch_import_hook() if "torch" not in sys.modules else get_used_torch() is None


def _has_torch_import_hook() -> bool:
    return any(isinstance(finder, _TorchImportSeeder) for finder in sys.meta_path)


@contextmanager
def torch_import_hook_for_frames() -> Iterator[None]:
    """Seed torch if its first import happens in a frame within this context."""
    if _has_torch_import_hook():  # the hook belongs to a worker, or to an outer run
        yield
        return
    install_torch_import_hook()
    _TorchImportSeeder.is_for_frames = True
    try:
        yield
    finally:
        _TorchImportSeeder.is_for_frames = False
        seeded_item.must_seed = True
        if sys.meta_path is not None:  # None while the interpreter shuts down
            sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _TorchImportSeeder)]


def get_initial_torch_state() -> Any:
    """Return the state of torch's generator after its import; None if no stage imported torch."""
    return _TorchImportSeeder.initial_state


_NO_QUEUED_CUDA_SEEDS: Final[dict[str, Any]] = {"manual_seed_all_cb": None, "manual_seed_cb": None, "call_order": []}
"""The queue of seeds in `torch.cuda` after its import."""


class IsolatedGenerators:
    """The global generators as an inline run sees them: Python's, NumPy's, torch's, and CUDA's if CUDA is in use.

    A run starts with a copy of the caller's states. `begin` and `end` are called around each step of the run's stages,
    inside `installed`; `swap_in` does both around a single piece of work.
    """

    def __init__(self, *, is_reseeded: bool) -> None:
        """With `is_reseeded`, the run seeds the generators before every draw, so its own states need not be kept."""
        self._is_reseeded = is_reseeded
        self._kept_parts: SeedParts | None = None
        self._kept_states: tuple[Any, Any] = (None, None)
        self._torch: _TorchStates | None = None
        self._queued_cuda_seeds: dict[str, Any] = {}
        self._swap: Swap | None = None
        """The swap of the last step, if nothing has used the generators in it."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Notice uses of a generator and a first import of torch in this context. The caller's code may run in it."""
        with torch_import_hook_for_frames():
            lazy_random.install()
            lazy_random_state.install()
            try:
                yield
            finally:
                lazy_random_state.uninstall()
                lazy_random.uninstall()

    @contextmanager
    def swap_in(self) -> Iterator[None]:
        """Within this context, the global generators and `context()` belong to the run."""
        with self.installed():
            swap = self.begin()
            try:
                yield
            finally:
                self.end(swap)

    def begin(self) -> Swap:
        """Lend the generators to the run until `end`, which takes the returned value."""
        swap = self._swap
        callers_parts = seeded_item.parts
        if (
            swap is None
            or swap.is_used
            or not (lazy_random.is_waiting and lazy_random_state.is_waiting)
            or lazy_random.frame is not None
            or lazy_random_state.frame is not None
            or callers_parts is not None
        ):
            kept_random, kept_random_state = self._kept_states
            swap = Swap(
                Frame(callers_parts, self._kept_parts, kept_random),
                Frame(callers_parts, self._kept_parts, kept_random_state),
            )
            seeded_item.parts = self._kept_parts
            lazy_random.lend(swap.random)
            lazy_random_state.lend(swap.random_state)
        else:  # nothing used them since the last step, and both wait: the usual case
            lazy_random.frame = swap.random
            lazy_random_state.frame = swap.random_state
        swap.is_used = True
        swap.context = stage_locals.context
        if "torch" in sys.modules:
            swap.torch = _capture_torch()
            if self._torch is not None:
                _restore_torch(self._torch)
            _get_queued_cuda_seeds().update(self._queued_cuda_seeds)
        return swap

    def end(self, swap: Swap) -> None:
        """Give the generators back to the caller, in their former states."""
        random, random_state = swap.random, swap.random_state
        if (
            self._is_reseeded
            and lazy_random.frame is random
            and lazy_random_state.frame is random_state
            and not (random.is_saved or random_state.is_saved)
            and random.outer is None
            and random.callers_parts is None
            and not lazy_random.is_permanent
        ):
            lazy_random.frame = lazy_random_state.frame = None
            seeded_item.parts = None
            swap.is_used = False
            self._swap = swap
        else:
            self._take_back(swap)
        if "torch" in sys.modules:
            if not self._is_reseeded:
                self._torch = _capture_torch()
            self._queued_cuda_seeds = dict(_get_queued_cuda_seeds())
            _restore_torch(swap.torch)
        stage_locals.context = swap.context

    def _take_back(self, swap: Swap) -> None:
        keeps_state = not self._is_reseeded
        kept_random = lazy_random.take_back(swap.random, keeps_state=keeps_state)
        kept_random_state = lazy_random_state.take_back(swap.random_state, keeps_state=keeps_state)
        if keeps_state:
            self._kept_states = (kept_random, kept_random_state)
            self._kept_parts = seeded_item.parts
        seeded_item.parts = swap.random.callers_parts


class Swap:
    """The values to restore at the end of a step of an inline run."""

    __slots__ = ("context", "is_used", "random", "random_state", "torch")

    def __init__(self, random: Frame, random_state: Frame) -> None:
        """Serves one step, and also the next steps while nothing uses the generators."""
        self.random = random
        self.random_state = random_state
        self.context: Context | None = None
        self.torch = _TorchStates()
        self.is_used = False


class _TorchStates:
    """The states of torch's global generators; None for torch before its import, and for CUDA before its start."""

    __slots__ = ("cpu", "cuda", "queued_cuda_seeds")

    def __init__(self, cpu: Any = None, cuda: Any = None, queued_cuda_seeds: dict[str, Any] | None = None) -> None:
        self.cpu = cpu
        self.cuda = cuda
        self.queued_cuda_seeds = _NO_QUEUED_CUDA_SEEDS if queued_cuda_seeds is None else queued_cuda_seeds


def _capture_torch() -> _TorchStates:
    torch: Any = sys.modules["torch"]
    cuda: Any = sys.modules.get("torch.cuda")
    return _TorchStates(
        torch.default_generator.get_state() if hasattr(torch, "default_generator") else None,
        [generator.get_state() for generator in cuda.default_generators] if _is_cuda_running() else None,
        {**_NO_QUEUED_CUDA_SEEDS, **_get_queued_cuda_seeds()},
    )


def _restore_torch(states: _TorchStates) -> None:
    torch: Any = sys.modules["torch"]
    state = get_initial_torch_state() if states.cpu is None else states.cpu
    if state is not None and hasattr(torch, "default_generator"):
        torch.default_generator.set_state(state)
    if _is_cuda_running():
        _restore_cuda(states)
    else:
        _get_queued_cuda_seeds().update(states.queued_cuda_seeds)


def _restore_cuda(states: _TorchStates) -> None:
    """Restore CUDA's generators. If CUDA started inside the run, seed them as if it had started outside."""
    for index, generator in enumerate(sys.modules["torch.cuda"].default_generators):
        if states.cuda is None:
            generator.seed()  # from the operating system
        else:
            generator.set_state(states.cuda[index])
    if states.cuda is None:
        for queued_call in filter(None, states.queued_cuda_seeds.get("call_order", ())):
            queued_call[0]()


def _is_cuda_running() -> bool:
    cuda: Any = sys.modules.get("torch.cuda")
    return hasattr(cuda, "is_initialized") and bool(cuda.is_initialized())


def _get_queued_cuda_seeds() -> dict[str, Any]:
    """Return torch's queue of seeds for the start of CUDA. The caller may change it."""
    tracker = getattr(sys.modules.get("torch.cuda"), "_lazy_seed_tracker", None)
    return {} if tracker is None else vars(tracker)
