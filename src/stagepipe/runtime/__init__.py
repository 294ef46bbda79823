"""The processes of a run.

supervisor   starts and ends the workers, hears them, sees their deaths     caller's process, a thread of its own
resources    pipes, arenas, board: made before any worker starts            caller's process
process      one worker as its supervisor holds it                          caller's process
consumer     the last hop's reader: delivers items in order                 caller's process
launch       what a worker is given at its start                            both
messages     what both sides say on the control channel                     both
worker       the worker's loop                                              worker
control      the worker's ear                                               worker
roles        source, stage, order point                                     worker
chain, stage what is run on an item                                         worker, and inline
probing      what a probe run tells of its items                            worker
gate         backpressure                                                   worker
reading      a source from any place                                        worker, and inline
seeding      the global generators                                          worker, and inline
"""
