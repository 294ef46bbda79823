"""Exception types as users write them, each hard to make from outside, and a stage that raises them."""

import dataclasses
from typing import Never, Self


class BadImage(ValueError):  # noqa: N818 - as a user may name it
    """Needs arguments, and shows what its `__init__` sets."""

    def __init__(self, path: str, *, size: int) -> None:
        super().__init__(path)
        self.path = path
        self.size = size

    def __str__(self) -> str:
        return f"{self.path} has {self.size} bytes"

    def __repr__(self) -> str:
        return f"BadImage({self.path!r}, size={self.size})"


class NeedsArguments(OSError):  # noqa: N818 - as a user may name it
    def __new__(cls, path: str) -> Self:
        return super().__new__(cls, path)


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):  # noqa: N818 - as a user may name it
    path: str


class Outer:
    class NestedError(LookupError):
        pass


class ItsOwnMessage(Exception):  # noqa: N818 - as a user may name it
    """Has one of RunError's attributes as a property."""

    @property
    def message(self) -> str:
        return "its own"


class CannotBeSubclassed(Exception):  # noqa: N818 - as a user may name it
    def __init_subclass__(cls) -> Never:
        message = "final"
        raise TypeError(message)


def make_local_error() -> Exception:
    class LocalError(Exception):
        pass

    return LocalError("local")


ERRORS: dict[str, Exception] = {
    "KeyError": KeyError("x"),
    "OSError": FileNotFoundError(2, "no such file", "a.jpg"),
    "UnicodeDecodeError": UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad byte"),
    "SyntaxError": SyntaxError("bad syntax"),
    "ImportError": ModuleNotFoundError("no module"),
    "BadImage": BadImage("a.jpg", size=3),
    "NeedsArguments": NeedsArguments("a.jpg"),
    "Frozen": Frozen("a.jpg"),
    "nested": Outer.NestedError("x"),
}


def raise_named(name: str) -> Never:
    raise ERRORS[name]
