"""The outputs that a stage keeps in files: `cache`. In workers and inline.

stage_cache  a stage's call, around which outputs are looked up and kept
entries      the files: written beside and renamed, mapped into memory when they are read
layout       an output as a tree without pickles, and the bytes of its arrays
"""

from stagepipe.runtime.execution.cache.stage_cache import make_cached_call

__all__ = ["make_cached_call"]
