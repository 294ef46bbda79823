"""Turns an item into a pickle and the buffers that it leaves out, and back. Knows nothing of packets.

codec     the encoder of a sending process, and `decode`
reducers  the pickler's table: which function takes the buffers of a type out
arrays    NumPy arrays
tensors   torch tensors
images    PIL images
stacking  many small arrays of one kind as a single array
"""

from stagepipe.transport.codec.codec import EncodedBuffer, Encoder, decode
from stagepipe.transport.codec.tensors import reduce_storage

__all__ = ["EncodedBuffer", "Encoder", "decode", "reduce_storage"]
