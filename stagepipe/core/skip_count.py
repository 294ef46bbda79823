"""How many items a job has skipped because of errors: what a saved state carries over to the run that goes on.

A pure value, made in the process of the consumer.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

_Count = Annotated[int, msgspec.Meta(ge=0)]


class SkipCount(msgspec.Struct, frozen=True):
    """`items` of the `source_items` that the source sent were skipped because of errors: see `max_skipped`."""

    items: _Count = 0
    source_items: _Count = 0
