"""stagepipe's values beside those of an independent library, cell by cell. `cell` says what a cell is.

`python -m tests.differential` writes the table of all cells to docs/reference/compared.md. Every 32nd cell runs in
`make test`, the others in `make test-slow`.
"""
