# SPDX-License-Identifier: Apache-2.0
"""How many processors a rank has for itself."""

import pytest

from tidegate.engine import processors_of

ALL = [0, 1, 2, 3]


@pytest.mark.parametrize(
    "places, expected",
    [
        ([("a", ALL)], [4]),
        ([("a", ALL), ("a", ALL)], [2, 2]),
        ([("a", ALL), ("b", ALL)], [4, 4]),  # numbers of another machine's
        ([("a", [0, 1]), ("a", [2, 3])], [2, 2]),  # each bound to its own
        ([("a", [0]), ("a", ALL)], [0.5, 3.5]),
        ([("a", [0, 1])] * 4 + [("b", [0])], [0.5] * 4 + [1]),
    ],
)
def test_processors_are_shared_by_those_who_may_run_on_them(places, expected):
    assert [processors_of(places, rank) for rank in range(len(places))] == expected
