"""The processes of a run.

In the caller's process, the supervisor and what it holds, on a thread of its own:
supervisor   makes what a run needs, hears the workers, sees their deaths, ends them
resources    pipes, arenas, board: made before any worker starts
crew         starts workers, and their successors; process: one of them; life: the kernel ends it with its supervisor
channel      the control channel's end here; door: its socket, which has no name
recovery     deaths: seen and mended; mending: what is decided about one; eras: the shared memory that it held
watch        items that take too long; stalls: who waits for whom; crowding, fullness: too little memory
learning     the hops' rules, by what their messages really cost
letters      the items that failed and were skipped
output       reads what workers print and log; line_reader: from bytes to lines

In the caller's process, on its own thread:
consumer     the last hop's reader: delivers items in order; place: where it stands, as a cursor

In a worker's process:
entry        how it begins and ends; saying: its stdout, stderr, logging and warnings
worker       its loop; control: its ear; tally: its counters on the way to the board
roles        source and stage; ordering, unordered: order points, with `order: source` and `any`
outlet       where a role's results go; gate: backpressure; manners: who waits for a processor
probing      what a probe run tells of its items
crashing     named points at which the tests let it kill itself

In a worker's process, and inline:
chain, stage what is run on an item; again: once more, where it failed; feeding, reading: a source; seeding: generators

In all of them, what travels:
launch       what a worker is given at its start
messages     what both sides say on the control channel; lines: how what is printed and logged travels
groups, said what an order point's output says of itself, with `order: any` and `source`
older        what a process still has of older eras
failures     what a failure says; yields: how many items a stage gives for those it takes
"""
