"""The processes of a run.

supervisor   starts and ends the workers, hears them, sees their deaths     caller's process, a thread of its own
resources    pipes, arenas, board: made before any worker starts            caller's process
process      one worker as its supervisor holds it                          caller's process
life         the kernel ends a worker with its supervisor                   caller's process
output       reads what workers print and log                               caller's process, a thread of its own
line_reader  one worker's output, from bytes to lines                       caller's process
lines        how lines and records travel, and are shown                    both
learning     the hops' rules, by what their messages really cost            caller's process
consumer     the last hop's reader: delivers items in order                 caller's process
place        where it stands, as a cursor                                   caller's process
launch       what a worker is given at its start                            both
messages     what both sides say on the control channel                     both
entry        how a worker's process begins and ends                         worker
saying       its stdout, stderr, logging and warnings                       worker
worker       the worker's loop                                              worker
control      the worker's ear                                               worker
roles        source, stage, order point; unordered: with `order: any`       worker
outlet       where a role's results go                                      worker
groups       what travels with an order point's output, `order: any`        worker, caller's process
yields       how many items a stage gives for those it takes                both
chain, stage what is run on an item                                         worker, and inline
probing      what a probe run tells of its items                            worker
gate         backpressure                                                   worker
reading      a source from any place                                        worker, and inline
seeding      the global generators                                          worker, and inline
"""
