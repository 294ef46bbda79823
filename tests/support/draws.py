"""Uses of the global generators, each once an item. The results go to stdout.

    python -m tests.support.draws lazy|eager python|numpy|libraries|pipelines [COUNT]

With `lazy` the process makes the generators lazy first, as a worker does. With `eager` they are seeded before each
item, and the results must be the same.
"""

# ruff: noqa: NPY002, PLW0108 - the global generators are what is used, and their functions are looked up when called

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from stagepipe.runtime import install_lazy_seeding

if __name__ == "__main__" and sys.argv[1] == "lazy":
    assert install_lazy_seeding()

import random as random_module
from random import getrandbits
from random import random as draw_one
from random import seed as seed_random

import numpy as np
from numpy.random import normal, rand
from numpy.random import seed as seed_numpy

import stagepipe
from stagepipe.core import get_used_torch, stage_locals
from stagepipe.plan import StagePlan
from stagepipe.runtime import StageRunner, make_private_stage_region
from stagepipe.runtime.execution.seeding import lazy_random, lazy_random_state
from stagepipe.spec import Target

ITEMS = 3


def python_generator() -> Any:
    return random._inst  # type: ignore[attr-defined]


def numpy_generator() -> Any:
    return np.random.mtrand._rand


def in_thread(draw: Callable[[], Any]) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(draw()))
    thread.start()
    thread.join()
    return results[0]


def in_forked_child(draw: Callable[[], Any]) -> Any:
    read_fd, write_fd = os.pipe()
    if os.fork() == 0:
        os.write(write_fd, repr(draw()).encode())
        os._exit(0)
    os.wait()
    os.close(write_fd)
    with os.fdopen(read_fd) as stream:
        return stream.read()


def after(set_up: Callable[[], Any], draw: Callable[[], Any]) -> Any:
    return set_up(), draw()


held: list[Any] = []


def with_held(make: Callable[[], Any]) -> Any:
    """Draw from something that the first item made, and that later items find."""
    if not held:
        held.append(make())
    return held[0]()


def shuffled(shuffle: Callable[[Any], None]) -> list[int]:
    values = list(range(9))
    shuffle(values)
    return values


def fresh_state() -> Any:
    return random.Random(7).getstate()


def restored(bit_generator: Any) -> Any:
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(bit_generator)
    drawn = np.random.random(), np.random.normal()
    np.random.set_bit_generator(before)
    return drawn


class Faulty(random.Random):
    def random(self) -> float:
        return 0.5


PYTHON: dict[str, Callable[[], Any]] = {
    "random": lambda: random.random(),
    "attribute": lambda: random_module.random(),
    "imported": lambda: (draw_one(), getrandbits(70)),
    "getrandbits": lambda: random.getrandbits(65),
    "randint": lambda: random.randint(0, 10**30),
    "randrange": lambda: [random.randrange(10) for _ in range(4)],
    "choice": lambda: random.choice("abcdefgh"),
    "choices": lambda: random.choices(range(99), k=5),
    "sample": lambda: random.sample(range(99), 5),
    "shuffle": lambda: shuffled(random.shuffle),
    "randbytes": lambda: random.randbytes(9).hex(),
    "uniform": lambda: random.uniform(1, 2),
    "triangular": lambda: random.triangular(1, 2),
    "betavariate": lambda: random.betavariate(1, 2),
    "expovariate": lambda: random.expovariate(2.0),
    "gammavariate": lambda: random.gammavariate(1, 2),
    "gauss once": lambda: random.gauss(0, 1),
    "gauss thrice": lambda: [random.gauss(0, 1) for _ in range(3)],
    "lognormvariate": lambda: random.lognormvariate(0, 1),
    "normalvariate": lambda: random.normalvariate(0, 1),
    "paretovariate": lambda: random.paretovariate(3),
    "vonmisesvariate": lambda: random.vonmisesvariate(1, 2),
    "weibullvariate": lambda: random.weibullvariate(1, 2),
    "getstate": lambda: random.getstate(),
    "setstate": lambda: after(lambda: random.setstate(fresh_state()), random.random),
    "setstate to itself": lambda: after(lambda: random.setstate(random.getstate()), random.random),
    "seed": lambda: after(lambda: random.seed(5), lambda: (random.random(), random.gauss(0, 1))),
    "imported seed": lambda: after(lambda: seed_random("text"), draw_one),
    "seed after gauss": lambda: (random.gauss(0, 1), random.seed(3), random.gauss(0, 1)),
    "pickled": lambda: pickle.loads(pickle.dumps(python_generator())).random(),
    "copied": lambda: copy.copy(python_generator()).random(),
    "deep-copied": lambda: (copy.deepcopy(python_generator()).random(), random.random()),
    "the instance": lambda: (python_generator().random(), random._inst.randint(0, 99)),  # type: ignore[attr-defined]
    "by the class": lambda: (
        random.Random.random(python_generator()),
        random.Random.getrandbits(python_generator(), 9),
    ),
    "its attributes": lambda: (python_generator().gauss_next, type(python_generator()).__name__, random.random()),
    "a held method": lambda: with_held(lambda: python_generator().random),
    "a new instance": lambda: (random.Random(3).random(), random.random()),
    "a subclass": lambda: (Faulty().random(), Faulty(3).getrandbits(5), random.random()),
    "a thread": lambda: (in_thread(random.random), random.random()),
    "two forks": lambda: (in_forked_child(random.random) == in_forked_child(random.random), random.random()),
    "nothing": lambda: None,
}

NUMPY: dict[str, Callable[[], Any]] = {
    **{
        name: lambda name=name, arguments=arguments: getattr(np.random, name)(*arguments)
        for name, arguments in {
            "beta": (1, 2, 3),
            "binomial": (9, 0.5),
            "bytes": (5,),
            "chisquare": (2,),
            "choice": (9, 3),
            "dirichlet": ([1, 2],),
            "exponential": (),
            "f": (1, 2),
            "gamma": (2,),
            "geometric": (0.3,),
            "gumbel": (),
            "hypergeometric": (5, 6, 4),
            "laplace": (),
            "logistic": (),
            "lognormal": (),
            "logseries": (0.5,),
            "multinomial": (5, [0.5, 0.5]),
            "multivariate_normal": ([0, 1], [[1, 0], [0, 1]]),
            "negative_binomial": (3, 0.5),
            "noncentral_chisquare": (2, 3),
            "noncentral_f": (1, 2, 3),
            "normal": (),
            "pareto": (2,),
            "permutation": (9,),
            "poisson": (3,),
            "power": (2,),
            "rand": (2, 2),
            "randint": (0, 99, 5),
            "randn": (3,),
            "random": (3,),
            "random_sample": (),
            "ranf": (),
            "sample": (),
            "rayleigh": (),
            "standard_cauchy": (),
            "standard_exponential": (),
            "standard_gamma": (2,),
            "standard_normal": (),
            "standard_t": (2,),
            "triangular": (1, 2, 3),
            "uniform": (),
            "vonmises": (0, 1),
            "wald": (1, 2),
            "weibull": (2,),
            "zipf": (2,),
            "get_state": (),
        }.items()
    },
    "312 and one": lambda: (np.random.rand(312).sum(), np.random.rand()),
    "keywords": lambda: np.random.normal(loc=3, scale=2, size=(2, 2)),
    "shuffle": lambda: shuffled(np.random.shuffle),
    "imported": lambda: (rand(), normal()),
    "mtrand": lambda: (np.random.mtrand.rand(), np.random.mtrand.normal()),
    "three normals": lambda: [np.random.normal() for _ in range(3)],
    "set_state": lambda: after(
        lambda: np.random.set_state(np.random.RandomState(3).get_state()), lambda: np.random.rand()
    ),
    "seed": lambda: after(lambda: np.random.seed(5), lambda: (np.random.rand(), np.random.normal())),
    "imported seed": lambda: after(lambda: seed_numpy(5), rand),
    "the instance": lambda: (numpy_generator().normal(), np.random.normal()),
    "pickled": lambda: pickle.loads(pickle.dumps(numpy_generator())).normal(),
    "copied": lambda: (copy.copy(numpy_generator()).rand(), copy.deepcopy(numpy_generator()).normal()),
    "by the class": lambda: np.random.RandomState.random_sample(numpy_generator()),
    "bit generator": lambda: (np.random.get_bit_generator().random_raw(), np.random.rand()),
    "its state": lambda: np.random.get_bit_generator().state,
    "a Generator on it": lambda: (np.random.Generator(np.random.get_bit_generator()).random(), np.random.rand()),
    "RandomState": lambda: (np.random.RandomState(4).rand(), np.random.rand()),
    "default_rng": lambda: (np.random.default_rng(3).random(), np.random.rand()),
    "a thread": lambda: (in_thread(np.random.rand), np.random.rand()),
    "a fork": lambda: (in_forked_child(np.random.rand), np.random.rand()),
    "both": lambda: (np.random.rand(), random.random(), np.random.rand()),
    "context": lambda: (stagepipe.context().rng.random(), random.random()),
    "nothing": lambda: None,
    # These may change how the generator is seeded from then on, so they come last.
    "a held method": lambda: with_held(lambda: numpy_generator().random_sample),
    "a held Generator": lambda: with_held(lambda: np.random.Generator(np.random.get_bit_generator()).random),
    "set_bit_generator": lambda: restored(np.random.MT19937(3)),
    "after it": lambda: np.random.rand(),
}


def libraries() -> dict[str, Callable[[], Any]]:
    """Draws by libraries that draw from NumPy's global generator in C, or by their own ways to it."""
    import albumentations
    import pandas as pd
    import scipy.sparse
    import scipy.stats
    import sklearn.cluster
    import sklearn.model_selection
    import sklearn.utils
    import torch
    import torchvision.transforms.v2 as transforms

    points = np.arange(40.0).reshape(20, 2)
    image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    flip = transforms.RandomHorizontalFlip()
    flip_array = albumentations.Compose([albumentations.HorizontalFlip()])
    return {
        "check_random_state": lambda: sklearn.utils.check_random_state(None).normal(),
        "sklearn's shuffle": lambda: sklearn.utils.shuffle(points),
        "train_test_split": lambda: sklearn.model_selection.train_test_split(points),
        "KMeans": lambda: sklearn.cluster.KMeans(2, n_init=1, max_iter=1).fit(points).cluster_centers_,
        "sample of a frame": lambda: pd.DataFrame(points).sample(3).to_numpy(),
        "scipy.stats": lambda: (scipy.stats.norm.rvs(size=2), scipy.stats.gamma(2).rvs()),
        "scipy.sparse": lambda: scipy.sparse.random(5, 5, 0.5).toarray(),
        "torch": lambda: (torch.rand(2), torch.randperm(5), torch.initial_seed(), torch.get_rng_state().sum()),
        "torch.seed": lambda: after(lambda: torch.manual_seed(3).initial_seed(), lambda: torch.rand(1)),
        "torchvision": lambda: flip(torch.arange(6).reshape(1, 2, 3)),
        "random_split": lambda: list(torch.utils.data.random_split(range(9), [5, 4])[0]),
        "albumentations": lambda: flip_array(image=image)["image"],
        "all": lambda: (random.random(), np.random.rand(), torch.rand(1)),
    }


SEEDED_AT_ONCE = {"a held method", "a held Generator", "set_bit_generator", "after it"}
"""What leaves somebody a way to a generator. `scipy.stats` keeps NumPy's for good."""


def draw_torch(item: Any) -> Any:
    """Say whether torch is unused; for later items use it, by a module of it that has names of its own."""
    if item:
        from torch.utils.data import random_split

        return [list(part) for part in random_split(range(9), [5, 4])]
    import torch.nn.functional  # noqa: F401 - an import is no use

    return get_used_torch() is None


def make_stage(target: Any, name: str = "stage", *, reseed: bool = True) -> StageRunner:
    plan = StagePlan(name=name, index=1, target=Target(target, {}), reseed=reseed, allow_none=True)
    return StageRunner(plan, 0, 17, None, make_private_stage_region())


def count_waiting() -> int:
    """How many of the two generators wait for their first use."""
    return [lazy_random.is_waiting, lazy_random_state.is_waiting].count(True)


def run_alone(name: str, draw: Callable[[], Any]) -> list[Any]:
    expected_waiting = 1 if "scipy.stats" in sys.modules else 2
    held.clear()
    gc.collect()

    def draw_one(number: int) -> Any:
        assert sys.argv[1] == "eager" or name in SEEDED_AT_ONCE or count_waiting() == expected_waiting, name
        return draw()

    stage = make_stage(draw_one)
    return [repr(stage.invoke(((number,),), [number])[0]) for number in range(ITEMS)]


# ---------------------------------------------------------------------- random mixes


def mix(number: int, name: str) -> list[Any]:
    """A few draws, chosen by number and name alone."""
    chosen = random.Random(f"{number} {name}")
    uses = [*_MIXED] if chosen.random() < 0.8 else []
    return [repr(_MIXED[key]()) for key in chosen.sample(uses, chosen.randrange(4)) if uses] if uses else []


_MIXED: dict[str, Callable[[], Any]] = {
    **{f"python {key}": use for key, use in PYTHON.items() if key not in {"two forks", "a thread", "a held method"}},
    **{f"numpy {key}": use for key, use in [*NUMPY.items()][:-4] if key not in {"a fork", "a thread"}},
}


def parts(item: Any, name: str) -> Iterator[Any]:
    for number in range(item[0] % 3):
        yield (*item, number, mix(item[0] + number, name))


class Source:
    """A stream that draws before it starts and for each item."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __iter__(self) -> Iterator[Any]:
        first = mix(self.seed, "stream")
        return ((number, first, mix(self.seed + number, "item")) for number in range(6))


def run_pipeline(seed: int) -> Any:
    """The items of a random pipeline, two epochs of it."""
    from tests.support.random_sources import NoisyPairs

    rnd = random.Random(seed)
    stages: list[dict[str, Any]] = []
    for index in range(rnd.randrange(1, 5)):
        name = f"s{index}"
        kind = rnd.choice(["map", "map", "parts", "batch"])
        keys: dict[str, Any] = {"name": name, "fuse": rnd.random() < 0.5, "reseed": rnd.random() < 0.8}
        if kind == "parts":
            keys["uses"] = lambda item, name=name: parts(item, name)
        elif kind == "batch":
            keys |= {
                "uses": lambda items, name=name: [(*i, mix(i[0], name)) for i in items],
                "batch": {"size": 2},
                "fuse": False,
            }
        else:
            keys["uses"] = lambda item, name=name: (*item, mix(item[0], name))
        stages.append(keys)
    if rnd.random() < 0.3:
        stages.append({"name": "pairs", "uses": NoisyPairs})
    config = {"source": {"uses": Source, "with": {"seed": seed}}, "stages": stages, "seed": seed}
    with stagepipe.Pipeline(config, inline=True) as pipeline:
        return repr([list(pipeline), list(pipeline)])


def main(group: str) -> None:
    random.seed(1)
    np.random.seed(1)
    if group == "pipelines":
        sys.stdout.write(json.dumps({str(seed): run_pipeline(seed) for seed in range(int(sys.argv[3]))}))
        run_alone("the end", lambda: None)
        return
    draws = {"python": lambda: PYTHON, "numpy": lambda: NUMPY, "libraries": libraries}[group]()
    sys.stdout.write(json.dumps({name: run_alone(name, draw) for name, draw in draws.items()}))


if __name__ == "__main__":
    stage_locals.context = None
    main(sys.argv[2])
