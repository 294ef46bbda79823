"""The version, in one place."""

from typing import Final

VERSION: Final = "0.1.0"
