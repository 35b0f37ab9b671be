"""What `make faults` runs: claw forget killed at more places than `make test` has time for.

pytest collects this file only where it is named.
"""

import pytest
from test_forget_crash import before  # noqa: F401 - a fixture
from test_forget_crash import test_forget_killed_anywhere_is_ended_by_the_same_command as check

pytestmark = pytest.mark.timeout(600)


def test_forget_killed_in_more_places(before, tmp_path):  # noqa: F811
    check(before, tmp_path, 3)
