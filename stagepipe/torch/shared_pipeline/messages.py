"""The messages between the ranks of a machine: typed and small, never items, never pickle. Pure."""

from __future__ import annotations

import msgspec

from stagepipe.core import Cursor, SourceIdentity


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """A follower's first message. `config_description` is its config in the form that a state dict stores."""

    local_rank: int
    config_description: str


class Welcome(msgspec.Struct, tag="welcome", frozen=True):
    """The leader's answer. Descriptors follow: the read end of a data pipe, the arenas, the arenas' release pipes."""

    arena_numbers: list[int]
    memory_bytes: int


class DescriptorBatch(msgspec.Struct, tag="descriptors", frozen=True):
    """Carries some of the descriptors; `descriptors_left` more follow after them."""

    descriptors_left: int


class JoinRefused(msgspec.Struct, tag="refused", frozen=True):
    """The leader refuses this rank, or cannot start."""

    reason: str


class EpochLength(msgspec.Struct, tag="length", frozen=True):
    """The number of items per epoch for all ranks of the machine together, and what the source reads; None: unknown."""

    items: int | None
    source: SourceIdentity | None = None


class EpochRequest(msgspec.Struct, tag="epoch_request", frozen=True):
    """A rank starts an iteration, numbered from 1.

    The rank has received the rounds of `epoch` before `first_round`; `cursor` is the position after them.
    """

    iteration: int
    epoch: int
    first_round: int
    cursor: Cursor | None


class IterationFailed(msgspec.Struct, tag="failed", frozen=True, kw_only=True):
    """A rank's iteration failed; iteration 0 means that all its iterations are over.

    `error_type` names the type of the user's exception; see `stagepipe.core.name_error_type`.
    """

    iteration: int
    message: str
    stage: str = ""
    worker: int = -1
    item: str = ""
    trace: str = ""
    error_type: str = ""


class LoaderClosed(msgspec.Struct, tag="loader_closed", frozen=True):
    """A rank has closed its loader and disconnects on purpose."""


RankMessage = (
    Hello | Welcome | DescriptorBatch | JoinRefused | EpochLength | EpochRequest | IterationFailed | LoaderClosed
)

encode_message = msgspec.msgpack.Encoder().encode
decode_message = msgspec.msgpack.Decoder(RankMessage).decode
