"""The types of the builder's parameters: what it accepts as a source, and the options of `loader`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypedDict, TypeVar

from stagepipe.core import Deferred
from stagepipe.plan import EvenMode

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class SupportsGetItem(Protocol[T_co]):
    """A map-style dataset or sequence: `__len__` and `__getitem__`."""

    def __getitem__(self, index: int, /) -> T_co: ...


class LoaderOptions(TypedDict, total=False):
    """The options of `stagepipe.torch.Loader`."""

    rank: int | Literal["auto"] | None
    world_size: int | None
    even: EvenMode | None
    pin_memory: bool
    device: torch.device | str | int | None
    limit: int | None
    inline: bool
    share: Literal["node"] | None
    local_rank: int | None
    local_world_size: int | None


Source: TypeAlias = Iterable[T] | SupportsGetItem[T] | Callable[[], Iterable[T]]
Dataset: TypeAlias = (
    Iterable[T]
    | SupportsGetItem[T]
    | Callable[[], Iterable[T] | SupportsGetItem[T]]
    | Deferred[Iterable[T]]
    | Deferred[SupportsGetItem[T]]
)
