"""One pipeline per machine that feeds all of the machine's ranks: `Loader(..., share="node")`.

The first rank is the leader: it owns the pipeline and dispatches its items. The other ranks are followers.

pipeline         `SharedPipeline`: what a `Loader` iterates over                on every rank, training thread
topology         which rank of which machine this process is                    pure
rendezvous       how the ranks of a machine connect, and only they              on every rank, training thread
connection       a typed connection between two ranks; the listener thread      on every rank
messages         the messages on that connection                                pure
rank_endpoint    the interface of leader and follower                           pure
rounds           groups items into rounds of one item per rank                  pure
epoch_requests   which rank requests which epoch                                leader, all its threads
dispatcher       sends the items of each round to the ranks                     leader, its own thread
leader           the first rank's endpoint: pipeline, dispatcher and listener   leader, training thread
follower         every other rank's endpoint                                    followers, training thread

Items never travel on the connection. Each follower has its own packet pipe, and what lies in shared memory is passed on
without a copy. When a rank dies, the others see it at once and report it by name.
"""

from stagepipe.torch.shared_pipeline.pipeline import SharedPipeline
from stagepipe.torch.shared_pipeline.topology import RankTopology

__all__ = ["RankTopology", "SharedPipeline"]
