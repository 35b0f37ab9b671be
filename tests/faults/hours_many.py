"""What `make faults` runs: hourly runs in more orders than `make test` has time for.

pytest collects this file only where it is named.
"""

import pytest
from test_ingest_hours import test_hourly_runs_in_any_order_give_the_table_of_the_whole as check

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("seed", range(1, 6))
def test_hourly_runs_in_more_orders(tmp_path, seed):
    check(tmp_path, seed)
