"""An item as a pickle and its buffers, and back.

codec    the encoder and the decoder
arrays   NumPy arrays and PIL images without their bytes
tensors  torch tensors without their bytes
"""

from stagepipe.transport.codec.codec import EncodedBuffer, Encoder, decode
from stagepipe.transport.codec.tensors import reduce_storage

__all__ = ["EncodedBuffer", "Encoder", "decode", "reduce_storage"]
