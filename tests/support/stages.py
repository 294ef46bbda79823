"""Well-behaved stages and sources, whose output can be computed by hand. Imported by worker processes."""

import fcntl
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import stagepipe


def double(item: Any) -> Any:
    return item * 2


def same(item: Any) -> Any:
    return item


def plus(item: int, amount: int = 1) -> int:
    return item + amount


def labelled(item: int, labels: list[str]) -> str:
    return labels[item % len(labels)]


def first(item: tuple[Any, ...]) -> Any:
    return item[0]


def is_even(item: int) -> bool:
    return item % 2 == 0


def skip_thirds(item: int) -> Any:
    return stagepipe.SKIP if item % 3 == 0 else item


def parts(item: Any) -> Iterator[Any]:
    """Yield 0 to 3 parts; none for every fourth item."""
    number = item if isinstance(item, int) else sum(item)
    for part in range(number % 4):
        yield (*item, part) if isinstance(item, tuple) else (item, part)


def some_skipped(item: int) -> Iterator[Any]:
    for part in range(4):
        yield stagepipe.SKIP if part == item % 4 else (item, part)


class Echo:
    """Returns the arguments that it was built with."""

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments

    def __call__(self, item: Any) -> Any:
        del item
        return self.arguments


def two(item: Any) -> Iterator[Any]:
    yield (item, "a")
    yield (item, "b")


def to_dict(item: int) -> dict[str, Any]:
    return {"id": item, "x": np.full((4, 3), item, np.float32), "name": f"item {item}"}


def image(item: int, size: int = 8) -> dict[str, Any]:
    rng = np.random.default_rng(item)
    return {"id": item, "image": rng.integers(0, 255, (size, size, 3), np.uint8)}


def halve(x: np.ndarray) -> np.ndarray:
    assert isinstance(x, np.ndarray)
    return x / 2


def tensor_sum(x: Any) -> float:
    import torch

    assert isinstance(x, torch.Tensor)
    return float(x.sum())


def write_in_place(item: dict[str, Any]) -> dict[str, Any]:
    item["x"] += 1
    return item


def is_writable(item: dict[str, Any]) -> dict[str, Any]:
    return {**item, "was_writable": bool(item["x"].flags.writeable)}


class Scale:
    """Built once per worker; called with an item."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, item: int) -> int:
        return item * self.factor


def halves_of_all(items: list[int]) -> list[Any]:
    """For a stage with `batch`: one result per item, every fifth dropped."""
    assert isinstance(items, list)
    return [stagepipe.SKIP if item % 5 == 0 else item / 2 for item in items]


def size_of_call(items: list[int]) -> list[int]:
    return [len(items)] * len(items)


@dataclass
class Record:
    """A dataclass item."""

    number: int
    values: np.ndarray


def to_record(item: int) -> Record:
    return Record(item, np.arange(item))


def from_record(item: Record) -> tuple[int, float]:
    return item.number, float(item.values.sum())


def asked(path: str) -> Iterator[int]:
    """A source that yields a number for each byte written to a named pipe."""
    with Path(path).open("rb", buffering=0) as fifo:
        number = 0
        while fifo.read(1):
            yield number
            number += 1


def scheduling(_: Any) -> int:
    """Return this worker's scheduling policy; see sched(7)."""
    return os.sched_getscheduler(0)


def drops_first(item: int, count: int) -> Any:
    """Drop the numbers below `count`."""
    return item if item >= count else stagepipe.SKIP


class LoadsAtItsFirstItem:
    """A model that takes `seconds` to load, with its first item."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, item: Any) -> Any:
        time.sleep(self._seconds)
        self._seconds = 0.001
        return item


def nap(item: Any, seconds: float = 0.01) -> Any:
    time.sleep(seconds)
    return item


def takes_turns(item: Any, path: str, seconds: float = 0.01) -> Any:
    """Sleep while no other process does: all wait for the lock of the file at `path`."""
    with Path(path).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        time.sleep(seconds)
    return item


def timed_nap(item: Any, seconds: float, path: str) -> Any:
    """Sleep, and append the nanoseconds that it took by the stage's own clock to the file at `path`."""
    begin_ns = time.perf_counter_ns()
    time.sleep(seconds)
    duration_ns = time.perf_counter_ns() - begin_ns
    with Path(path).open("a") as log:
        log.write(f"{duration_ns}\n")
    return item


def nap_at_random(item: Any, most_s: float = 0.004) -> Any:
    """Sleep for a time that depends on the clock, so that no two runs are scheduled alike."""
    time.sleep(random.Random(time.perf_counter_ns()).random() * most_s)
    return item


def first_waits_for(item: int, path: str, most_s: float = 20.0) -> int:
    """Hold item 0 back until the file `path` exists."""
    deadline = time.monotonic() + most_s
    while item == 0 and not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    return item


class StartsWith:
    """A stage that is not ready before the file `path` exists."""

    def __init__(self, path: str, most_s: float = 20.0) -> None:
        first_waits_for(0, path, most_s)

    def __call__(self, item: Any) -> Any:
        return item


# ---------------------------------------------------------------- randomness


def draws(item: int) -> dict[str, Any]:
    """Draw from each global generator and from the context's generator."""
    import torch

    return {
        "item": item,
        "python": random.random(),
        "numpy": np.random.rand(3),  # noqa: NPY002 - the global generator is under test
        "torch": torch.rand(3),
        "own": stagepipe.context().rng.normal(size=2),
    }


def light_draws(item: int) -> dict[str, Any]:
    """Like `draws` without torch, which takes seconds to import."""
    numpy = np.random.rand(3)  # noqa: NPY002 - the global generator is under test
    return {"item": item, "python": random.random(), "numpy": numpy, "own": stagepipe.context().rng.normal(size=2)}


def draw_again(item: dict[str, Any]) -> dict[str, Any]:
    return {**item, "again": random.random()}


def random_parts(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a random number of parts, with draws before and after each yield."""
    rng = stagepipe.context().rng
    for _ in range(int(rng.integers(0, 4))):
        yield {**item, "part": rng.random(), "global": random.random()}


def pillow_jitter(image: np.ndarray) -> np.ndarray:
    """An augmentation as users write it with Pillow and the `random` module."""
    from PIL import Image, ImageEnhance

    augmented = Image.fromarray(image).rotate(random.uniform(-20, 20))
    if random.random() < 0.5:
        augmented = augmented.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(ImageEnhance.Brightness(augmented).enhance(random.uniform(0.5, 1.5)))


# ---------------------------------------------------------------- where a stage runs


def surroundings(item: int) -> dict[str, Any]:
    """Return the environment and context of the worker."""
    import torch

    context = stagepipe.context()
    return {
        "item": item,
        "pid": os.getpid(),
        "omp": os.environ.get("OMP_NUM_THREADS"),
        "flag": os.environ.get("MY_FLAG"),
        "torch_threads": torch.get_num_threads(),
        "cpus": sorted(os.sched_getaffinity(0)),
        "cwd": str(Path.cwd()),
        "context": (context.stage, context.worker, context.epoch, context.item, context.seed),
    }


# ---------------------------------------------------------------- sizes


def megabyte(item: int) -> dict[str, Any]:
    """1.2 MB, the size of an image."""
    return {"id": item, "image": np.full(1_200_000, item % 251, np.uint8)}


def filled(item: int, nbytes: int) -> dict[str, Any]:
    """An array of `nbytes` bytes, in the process's own memory."""
    return {"id": item, "image": np.full(nbytes, item % 251, np.uint8)}


def lent(item: int, nbytes: int) -> dict[str, Any]:
    """An array of `nbytes` bytes, allocated in the outgoing shared memory."""
    image = stagepipe.empty((nbytes,), np.uint8)
    image[:] = item % 251
    return {"id": item, "image": image}


def number_of(item: dict[str, Any]) -> int:
    return item["id"]


def hosted(item: int) -> Any:
    """A tensor as it arrives from another device."""
    import torch

    from stagepipe.transport.codec import to_host

    return to_host(torch.full((100_000,), float(item)))


def on_the_gpu(item: int) -> Any:
    """A tensor on the one GPU that the worker sees."""
    import torch

    assert torch.cuda.device_count() == 1
    return torch.full((100_000,), float(item), device="cuda")


def draws_on_the_gpu(item: int) -> Any:
    """Random numbers of the GPU's generator. The first call of a worker starts CUDA."""
    import torch

    return {"item": item, "draws": torch.rand(3, device="cuda").cpu()}


class GpuFeatures:
    """A small convolutional model on the GPU: a uint8 image (H, W, 3) becomes 16 features, still on the GPU."""

    def __init__(self) -> None:
        import torch

        torch.manual_seed(0)
        self._model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 5, stride=4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
        ).to("cuda")

    def __call__(self, item: dict[str, Any]) -> dict[str, Any]:
        import torch

        image = torch.as_tensor(item["image"].copy()).to("cuda").permute(2, 0, 1)[None] / 255
        with torch.inference_mode():
            features = self._model(image)[0]
        return {"id": item["id"], "features": features, "image": image[0]}


def mean_on_the_gpu(item: dict[str, Any]) -> dict[str, Any]:
    """For a stage that is fused to `GpuFeatures`: its input is still on the GPU."""
    assert item["image"].is_cuda
    return {**item, "mean": item["image"].mean()}


def breaks_the_device(item: int) -> int:
    """Fail an assertion in a kernel at item 5."""
    import torch

    table = torch.arange(12, device="cuda")
    return int(table[torch.tensor([12 if item == 5 else item], device="cuda")])


def cuda_is_available(item: int) -> bool:
    import torch

    return torch.cuda.is_available()


def recorded(item: Any, path: str) -> Any:
    """Leave a file at `path`, as a sign that an item has come this far."""
    Path(path).touch()
    return item


def touched(item: dict[str, Any]) -> dict[str, Any]:
    """A new array of the same size."""
    return {**item, "image": item["image"] + np.uint8(1)}


def varied(item: int, seed: int = 0, least: int = 1, most: int = 1_200_000) -> dict[str, Any]:
    """An array whose size and time depend on the epoch and the item."""
    draw = random.Random(f"{seed} {stagepipe.context().epoch} {item}")
    time.sleep(draw.random() * 0.002)
    return {"id": item, "x": np.full(draw.randint(least, most), item % 251, np.uint8)}


def pieces(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield zero to four large parts."""
    draw = random.Random(f"pieces {stagepipe.context().epoch} {item['id']}")
    for part in range(draw.randint(0, 4)):
        time.sleep(draw.random() * 0.002)
        yield {"id": (item["id"], part), "x": np.full(draw.randint(1, 900_000), item["id"] % 251, np.uint8)}


def summed(item: dict[str, Any], key: str = "x") -> dict[str, Any]:
    """Return a copy with its sum, after a random nap."""
    time.sleep(random.Random(time.perf_counter_ns()).random() * 0.002)
    return {"id": item["id"], key: item[key].copy(), "sum": int(item[key].sum(dtype=np.int64))}


# ---------------------------------------------------------------- sources


class Logging:
    """An indexed source that writes a line to `log` for each item that is read."""

    def __init__(self, count: int, log: str) -> None:
        self.count = count
        self.log = log

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        with open(self.log, "a") as file:  # noqa: PTH123 - opened for every item, so it must be fast
            file.write(f"{index}\n")
        return index


def stream(count: int) -> Iterator[int]:
    yield from range(count)


class Stream:
    """Iterable, but not indexed."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


def once(count: int) -> Iterator[int]:
    return iter(list(range(count)))


class Epochs:
    """A source with `begin`; its items show the epoch."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.epoch = -1

    def begin(self, epoch: int, seed: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[int, int]:
        return self.epoch, index


# ---------------------------------------------------------------- sinks


class Lines:
    """A sink that writes one line per item, and a last line when it is closed."""

    def __init__(self, path: str) -> None:
        self.file = open(path, "w")  # noqa: PTH123, SIM115 - closed by `close`

    def __call__(self, item: Any) -> None:
        self.file.write(f"{item}\n")

    def close(self) -> None:
        self.file.write("closed\n")
        self.file.close()


def failing_sink(item: Any) -> None:
    if item == 3:
        raise OSError("the disk is full")


# ---------------------------------------------------------------- stages of the random pipelines


def _seed_text(item: Any) -> Any:
    """Return a string to seed a draw with, for an item of any shape."""
    return repr(item.tolist() if isinstance(item, np.ndarray) else item)


def mapped(item: Any, salt: int) -> Any:
    return item + salt


def delayed(item: Any, salt: int) -> Any:
    time.sleep(random.Random(time.perf_counter_ns()).random() * 0.003)
    return item + salt + random.randint(0, 9)


def filtered(item: Any, salt: int) -> Any:
    return stagepipe.SKIP if random.Random(f"{salt}{_seed_text(item)}").random() < 0.4 else item


def generated(item: Any, salt: int) -> Iterator[Any]:
    draw = random.Random(f"{salt}{_seed_text(item)}")
    for part in range(draw.randint(0, 3)):
        yield item + 100 * part + int(stagepipe.context().rng.integers(0, 9))


class Loaded:
    """Marks items with a random value that is drawn once per build."""

    def __init__(self) -> None:
        self.mark = os.urandom(4).hex()

    def __call__(self, item: Any) -> tuple[str, Any]:
        return self.mark, item


class Counts:
    """Counts the items that it has seen."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, item: Any) -> int:
        self.seen += 1
        return self.seen


class Once:
    """A stream that can be read only once."""

    def __init__(self, count: int) -> None:
        self.numbers = iter(range(count))

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        return next(self.numbers)
