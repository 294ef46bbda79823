"""`python -m stagepipe`: the command, run by the interpreter that the user names."""

from stagepipe.cli import main

main()
