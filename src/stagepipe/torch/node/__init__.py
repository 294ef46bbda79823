"""One pipeline a machine that feeds all its ranks: `Loader(..., share="node")`.

shared      `SharedPipeline`: what a `Loader` iterates over, on every rank        training thread
world       which rank of which machine this process is
rendezvous  how a machine's ranks find each other, and nobody else does
line        the typed connection between two of them; the ear that listens
messages    what they say on it
rounds      items in rounds of one a rank: pure
table       who wants which epoch                                                 the owner's threads
dealer      deals the rounds out                                                  a thread of the first rank
owner       the first rank's seat: pipeline, dealer and ear are its own           first rank
member      any other rank's seat                                                 the other ranks

Items never go over the connection: each other rank has a packet pipe of its own, and what lies in shared memory is
passed on where it lies. Whoever dies is seen by the others at once, by name.
"""

from stagepipe.torch.node.shared import SharedPipeline
from stagepipe.torch.node.world import World

__all__ = ["SharedPipeline", "World"]
