"""The smallest case of `python -m tests.programs hosts`: two hosts that share nothing give the rows of one."""

import pytest

from tests.programs.hosts import TABLE, end_kept_cluster
from tests.support.hosts import find_what_is_missing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(find_what_is_missing()), reason=find_what_is_missing() or "has all"),
]


def test_two_hosts_that_share_nothing_give_the_rows_of_one():
    try:
        (row,) = TABLE.cases["quickstart"]()
    finally:
        end_kept_cluster()
    assert row["rows"].startswith("equal")
    assert row["ends"] == "exit 0"
    assert row["left"] == "nothing"
