"""A script without a `__main__` guard. Its items, functions and errors are of classes that it defines itself."""

import copy
import enum
import typing
from dataclasses import dataclass

import stagepipe

WEIGHTS = bytes(3 << 20)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Item:
    number: int
    color: Color


class Pair(typing.NamedTuple):
    item: Item
    double: typing.Callable[[int], int]


class Shelf:
    class Box:
        def __init__(self, number: int) -> None:
            self.number = number


class BadItem(Exception):  # noqa: N818 - as a user may name it
    pass


def double(number: int) -> int:
    return 2 * number


def numbers() -> typing.Iterator[Item]:
    for number in range(4):
        yield Item(number, Color.RED if number % 2 else Color.BLUE)


def pair(item: Item) -> Pair:
    assert len(WEIGHTS) == 3 << 20  # goes only to the workers of this stage
    assert isinstance(item, Item)
    return Pair(item, double)


def put_in_a_box(pair: Pair) -> dict[str, typing.Any]:
    return {"pair": pair, "box": Shelf.Box(pair.double(pair.item.number))}


def refuse(item: Item) -> Item:
    raise BadItem(item)


stages = stagepipe.from_source(numbers).map(pair).map(copy.copy).map(put_in_a_box).map(copy.copy, name="again")
with stages.open() as pipeline:
    items = list(pipeline)
assert [item["pair"] for item in items] == [Pair(item, double) for item in numbers()], items
assert [item["box"].number for item in items] == [0, 2, 4, 6]
assert {type(item["box"]) for item in items} == {Shelf.Box}
assert items[0]["pair"].item.color is Color.BLUE

with stagepipe.from_source([Item(7, Color.RED)]).map(copy.copy).open() as pipeline:
    assert list(pipeline) == [Item(7, Color.RED)]

try:
    with stagepipe.from_source(numbers).map(refuse).open() as pipeline:
        list(pipeline)
except BadItem as error:
    print(error.item)  # noqa: T201 - read by the test
