"""The version of stagepipe. The build reads it from here (`tool.hatch.version` in pyproject.toml)."""

VERSION = "0.1.0"
