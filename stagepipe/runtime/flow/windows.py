"""The windows of the segments, which shrink when an item does not fit into shared memory. In the caller's process."""

from __future__ import annotations

from stagepipe.plan import Plan


class SegmentWindows:
    """The current windows of the segments, in items: `windows`, and `small_item_windows` for items of few bytes."""

    def __init__(self, plan: Plan) -> None:
        """Start with the plan's windows."""
        self.windows = [segment.window for segment in plan.segments]
        self.small_item_windows = [segment.small_item_window for segment in plan.segments]

    def halve(self) -> bool:
        """Halve all windows. Returns False if each is 1 already."""
        if max(self.windows + self.small_item_windows) == 1:
            return False
        self.windows = [max(1, window // 2) for window in self.windows]
        self.small_item_windows = list(self.windows)
        return True
