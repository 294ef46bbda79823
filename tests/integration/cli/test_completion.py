"""Shell completion: what bash offers with the script of `--show-completion`, as after the Tab key."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")

COMPLETE = """
source <(stagepipe --show-completion bash) || exit 1
while read -r line; do
  read -ra COMP_WORDS <<< "$line"
  [[ $line == *" " ]] && COMP_WORDS+=("")
  [[ $line == *_ ]] && COMP_WORDS[-1]=""
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
  _stagepipe_completion stagepipe
  echo "${COMPREPLY[*]}" | tr '\\n' ' '; echo
done
"""

FEW_CASES = {"stagepipe do": {"doctor"}, "stagepipe list sinks par": {"parquet"}}
CASES = {
    "stagepipe _": {"run", "validate", "plan", "report", "init", "doctor", "list", "bench", "schema"},
    "stagepipe run --res": {"--resume"},
    "stagepipe run c.yaml --window 3 --inl": {"--inline"},
    "stagepipe init --kind t": {"text", "table"},
    "stagepipe list s": {"sources", "stages", "sinks"},
    "stagepipe list image.R": {"image.Resize"},
    "stagepipe run pipe": set(),  # nothing of ours: bash completes the name of a file
}


def complete(cases):
    """What bash offers at the end of each line."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    lines = "".join(f"{line}\n" for line in cases)
    env = {**os.environ, "PATH": path, "SHELL": "/bin/bash"}
    run = subprocess.run(
        ["bash", "--norc", "-c", COMPLETE],
        input=lines,
        env=env,
        capture_output=True,
        text=True,
        timeout=110,
        check=True,
    )
    assert run.stderr == ""
    return dict(zip(cases, (set(line.split()) for line in run.stdout.splitlines()), strict=True))


def test_commands_and_names_are_completed():
    assert complete(FEW_CASES) == FEW_CASES


@pytest.mark.slow
def test_options_and_values_are_completed():
    offered = complete(CASES)
    all_commands = offered.pop("stagepipe _")
    assert CASES["stagepipe _"] <= all_commands
    assert offered == {line: words for line, words in CASES.items() if line in offered}
