"""The progress of all islands as one. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from stagepipe.report import Progress


def add_progress(parts: Sequence[Progress]) -> Progress:
    """Return the sums. The total is known if that of each island is; `busiest` and `starting` are of any of them."""
    totals = [part.items_total for part in parts]
    return Progress(
        elapsed_ns=max((part.elapsed_ns for part in parts), default=0),
        items_in=sum(part.items_in for part in parts),
        items_done=sum(part.items_done for part in parts),
        items_total=sum(total for total in totals if total is not None) if None not in totals else None,
        items_out=sum(part.items_out for part in parts),
        samples_out=sum(part.samples_out for part in parts),
        samples_per_s=sum(part.samples_per_s for part in parts),
        starting=tuple(dict.fromkeys(name for part in parts for name in part.starting)),
        busiest=next((part.busiest for part in parts if part.busiest), ""),
        items_per_s=sum(part.items_per_s for part in parts),
    )
