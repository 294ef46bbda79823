"""A stage that waits for a debugger."""

from typing import Any

import debugpy  # noqa: T100 - this is what the stage is for


class Double:
    """Doubles numbers. Listens on `port`, and waits for a client before the first item."""

    def __init__(self, port: int) -> None:
        debugpy.listen(port)  # noqa: T100

    def __call__(self, number: Any) -> Any:
        debugpy.wait_for_client()  # noqa: T100
        doubled = 2 * number
        return doubled  # noqa: RET504 - a breakpoint stands here
