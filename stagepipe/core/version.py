"""The version of stagepipe, and its name on the Python Package Index.

The build reads the version from here (`tool.hatch.version` in pyproject.toml).
"""

VERSION = "0.1.0"
DISTRIBUTION = "stagepipe-ml"
"""The name in pyproject.toml; package and command are `stagepipe`, which is another project on the index."""
