"""Pickles PIL images without their pixels, otherwise as PIL does. Runs in every process that handles PIL images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stagepipe.transport.codec.arrays import BufferRegistrar, decode_context

if TYPE_CHECKING:
    from PIL import Image


def pickles_as_image(cls: type) -> bool:
    """Whether `cls` pickles as PIL's `Image` or `ImageFile` does: a subclass with state of its own does not."""
    from PIL import Image, ImageFile

    return issubclass(cls, Image.Image) and all(
        getattr(cls, name) in (getattr(Image.Image, name), getattr(ImageFile.ImageFile, name))
        for name in ("__getstate__", "__setstate__", "__reduce_ex__", "__reduce__")
    )


def reduce_image(image: Image.Image, register_buffer: BufferRegistrar) -> Any:
    """The reducer of images: PIL's state (info, mode, size, palette, pixels ...) with a buffer index for the pixels."""
    info, mode, size, palette, pixels, *more = image.__getstate__()
    return rebuild_image, (
        type(image),
        register_buffer(np.frombuffer(pixels, np.uint8)),
        (info, mode, size, palette),
        more,
    )


def rebuild_image(cls: type, buffer_index: int, state: tuple[Any, ...], extra_state: list[Any]) -> Any:
    """The image from the pixels in a buffer of the packet, which PIL copies."""
    image: Any = object.__new__(cls)
    image.__setstate__([*state, b"" if buffer_index < 0 else decode_context.buffers[buffer_index], *extra_state])
    return image
