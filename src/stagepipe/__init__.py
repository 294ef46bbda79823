"""stagepipe: data preparation in stages, each in its own process, with every hop measured."""

from stagepipe.core import SKIP, Context, RunError, StagepipeError, context, empty

__all__ = ["SKIP", "Context", "RunError", "StagepipeError", "context", "empty"]
