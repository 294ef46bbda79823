"""`QualityFilter`: drops texts by the rules of datatrove. Runs in any worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from stagepipe.core import SKIP
from stagepipe.stages.optional_packages import describe_value, requires


class QualityFilter:
    r"""Drop a text that one of datatrove's filters refuses, such as those of Gopher, C4 and FineWeb.

    Called with a str, it returns it; C4's filter also removes lines of it. With `field`, the item of a refused text is
    dropped.

    Args:
        filters: filters of `datatrove.pipeline.filters`, asked in this order. In YAML each is `{uses: ..., with: ...}`.

    >>> from datatrove.pipeline.filters import FineWebQualityFilter
    >>> keep = QualityFilter([FineWebQualityFilter()])
    >>> keep("Buy now\nBest price\nCheap")
    stagepipe.SKIP

    Raises TargetError if datatrove is not installed, and TypeError for what is no text or no filter.
    """

    def __init__(self, filters: Sequence[Any]) -> None:
        with requires("text.QualityFilter", extra="quality"):
            from datatrove.data import Document
            from datatrove.pipeline.filters.base_filter import BaseFilter
        others = [each for each in filters if not isinstance(each, BaseFilter)]
        if others or not filters:
            found = f"an object of type {type(others[0]).__name__}" if others else "an empty list"
            raise TypeError(
                f"text.QualityFilter: `filters` has {found}; give filters of datatrove.pipeline.filters, such as "
                "{uses: datatrove.pipeline.filters.FineWebQualityFilter}"
            )
        self._make_document: Final = Document
        self._filters: Final = list(filters)

    def __call__(self, text: Any) -> Any:
        """Return the text, or SKIP."""
        if not isinstance(text, str):
            raise TypeError(
                f"text.QualityFilter: expected a text, found {describe_value(text)}; name the field that holds it in "
                "`field`"
            )
        document = self._make_document(text=text, id="")
        for each in self._filters:
            result = each.filter(document)
            if result is False or isinstance(result, tuple):  # a tuple: False, and the reason
                return SKIP
        return document.text
