"""Uses of the builder that mypy and pyright refuse: each line with the comment `# wrong`. Read by both, never run."""

from collections.abc import Iterator

from stagepipe import defer, from_dataset, from_source


def length(text: str) -> int:
    return len(text)


def parts(text: str) -> Iterator[str]:
    yield text


class Resize:
    def __init__(self, size: int, *, antialias: bool = True) -> None:
        self.size = size

    def __call__(self, text: str) -> str:
        return text


class Silent:
    pass


words = from_source(["a", "b"])

words.map(length, worker=4)  # wrong
words.map(length, workers=2.5)  # wrong
words.map(length, on_error="ignore")  # wrong
words.map(length, timeout=None)  # wrong
words.map(length, field="text")  # wrong
words.map(3)  # wrong
words.map(length).map(length)  # wrong
words.map(length).filter(length)  # wrong
words.map(length).map(defer(Resize, 224))  # wrong
words.map(defer(Silent))  # wrong
words.flat_map(length)  # wrong
words.map_batches(length, batch_size=3)  # wrong
words.map_batches(sorted)  # wrong
words.map_field("a", str, as_="tensors")  # wrong
words.shuffle()  # wrong
words.batch("64")  # wrong
words.batch(64, drop_first=True)  # wrong
words.with_options(seeds=3)  # wrong
words.with_options(order="random")  # wrong
words.run(items=3)  # wrong
words.open(inlined=True)  # wrong
words.loader(pin=True)  # wrong
words.transform(length)  # wrong

defer(Resize)  # wrong
defer(Resize, "224")  # wrong
defer(Resize, 224, True)  # wrong
defer(Resize, 224, anti_alias=True)  # wrong
from_source(3)  # wrong
from_source(["a"], retry=3)  # wrong
from_dataset(["a"], shuffled=True)  # wrong

for _ in words:  # wrong
    pass
words.take(1)[0].missing()  # wrong
