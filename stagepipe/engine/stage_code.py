"""The code of the stages that a config names by import path, as digests: a resume warns if it has changed.

In the caller's process. Only the file of the stage itself is read, not what it imports, and nothing is imported. So
this takes milliseconds. Objects from Python have fingerprints, which a state compares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from stagepipe.config import find_target_files
from stagepipe.core import PACKAGE_DIR
from stagepipe.spec import PipelineSpec

_DIGEST_BYTES: Final = 8


def describe_stage_code(spec: PipelineSpec) -> dict[str, tuple[str, str]]:
    """Return the file and its digest of each stage, and of the source. Those of this package are left out."""
    source = spec.source
    targets = {"source": source.target, **{f"stage {stage.name}": stage.target for stage in spec.stages}}
    code: dict[str, tuple[str, str]] = {}
    for place, target in targets.items():
        if not isinstance(target.uses, str):
            continue
        files = find_target_files(
            replace(spec, source=replace(source, target=replace(target, arguments={})), stages=())
        )
        for file in files:
            if not file.is_relative_to(PACKAGE_DIR) and (digest := _hash_file(file)):
                code[place] = (str(file), digest)
    return code


def find_changed_code(saved: Mapping[str, str], current: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return the stages whose file has another digest than in `saved`, with the file.

    >>> find_changed_code({"stage a": "12", "stage b": "34"}, {"stage a": ("a.py", "12"), "stage b": ("b.py", "56")})
    ['stage b (b.py)']
    """
    return [f"{place} ({file})" for place, (file, digest) in current.items() if saved.get(place, digest) != digest]


def _hash_file(file: Path) -> str:
    try:
        return hashlib.blake2b(file.read_bytes(), digest_size=_DIGEST_BYTES).hexdigest()
    except OSError:  # of a module in an archive
        return ""
