# SPDX-License-Identifier: Apache-2.0
"""The benchmark that holds ways against dense on other seeds: what it makes of figures."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import fresh_seeds
from benchmarks.evidence.jobs import JOBS


def test_differences_are_of_the_same_seeds_with_the_error_of_their_mean():
    found = [(0.86, 10.0), (0.88, 12.0)]
    row = fresh_seeds.row_of(JOBS["cnn"], "auto", found, dense=[0.87, 0.87])
    assert row == ["auto", "11.0", "+0.000", "1.000", "-1.000"]


def test_the_worst_seed_is_the_highest_where_less_is_better():
    row = fresh_seeds.row_of(JOBS["lstm"], "int4", [(2.3, 1.0), (2.5, 1.0)], dense=[2.2, 2.2])
    assert row[2:] == ["+0.200", "0.100", "+0.300"]


def test_seeds_are_a_range_or_one():
    assert list(fresh_seeds.seeds_in("70-72")) == [70, 71, 72]
    assert list(fresh_seeds.seeds_in("7")) == [7]


@pytest.mark.parametrize("words", [["--seeds", "x", "auto"], ["--link", "tape", "auto"], []])
def test_what_it_cannot_read_is_told_at_once(words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fresh_seeds", *words])
    with pytest.raises(SystemExit):
        fresh_seeds.main()
    assert "usage" in capsys.readouterr().err
