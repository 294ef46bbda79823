"""Programs, test suites and jobs that other people wrote, with stagepipe in them or beside them.

sources     where their code and their tools' environments are on this machine; none of it is in this repository
tables      what was measured, in results/, and the tables of docs/programs.md
training    training scripts with a few lines changed
suites      the tests of other data loaders, run through adapters
offline     jobs beside the tool that people use for them
concurrent_calls  calls to a server with faults: `async def` stages beside other tools
hosts       a Ray cluster of nodes that share no namespace

`python -m tests.programs TABLE [CASE...]` runs cases of a table, saves their rows and fills the page.
"""
