"""Projects to begin with, for `stagepipe init`: a config, its stages, a script that makes data, and tests.

Runs in the process of the command.

kinds        `StarterKind`
project      `write_project`: writes the files of a kind into a folder
templates/   the files of each kind, with `@NAME@` and `@ITEMS@` to fill in; `.txt`, as they are no modules of ours
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.starters.kinds import StarterKind
    from stagepipe.starters.project import StarterProject, write_project

__all__ = ["StarterKind", "StarterProject", "write_project"]

__getattr__ = lazy_names(__name__, {"StarterKind": "kinds", "StarterProject": "project", "write_project": "project"})
