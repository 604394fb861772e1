"""Which tests the gate runs a second time, with the lake on an object store, and why each of them.

The first run has `integration/stores/`, whose lake is on a store in every run: what a store does that a folder does
not, and the whole life of a table. These are the kinds of commit that are not in it, so that none works on a folder
only. All other tests of whole tables run there by hand:
`deploy/run test --warehouse s3 harness_pipelines_tests/integration`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

TESTS = Path(__file__).parent
ESSENTIAL: Mapping[str, str] = {
    "integration/tables/test_no_buffer.py": "tier from the log",
    "integration/tables/test_compact.py::"
    "test_small_files_become_one_per_partition_in_offset_order_and_no_bound_moves": "compact replaces files",
    "integration/tables/test_compact.py::test_small_files_are_kept_for_a_lease_and_condemned_when_it_ends": (
        "expire knows the files that a reader holds"
    ),
    "integration/tables/test_otree.py::test_a_late_attempt_of_a_merge_changes_nothing": (
        "a merge whose branch another attempt took"
    ),
    "integration/tables/test_keyed_merge.py::test_files_without_a_changed_key_stay_and_the_snapshot_is_an_overwrite": (
        "a merge that rewrites some files"
    ),
    "faults/test_matrix.py::"
    "test_a_worker_that_dies_or_sleeps_at_any_point_is_followed_without_loss_double_or_a_human_act"
    "[tier.in_transaction=kill@1 by spark]": "a holder that dies in its boundary commit is followed",
}


def main() -> None:
    """Print what pytest is given, one test or file per line."""
    for name in ESSENTIAL:
        print(TESTS / name)


if __name__ == "__main__":
    main()
