# SPDX-License-Identifier: Apache-2.0
"""A few seconds of cli_fuzz.py, always the same; tools/fuzz.sh goes on from there."""

import pytest
from cli_fuzz import CALLS, complaint_about, fuzz, make_call

SEEDS = range(240)


@pytest.mark.parametrize("part", range(4))
def test_no_change_of_a_right_call_makes_a_command_stumble(part, tmp_path):
    seeds = SEEDS[part::4]
    assert fuzz(seeds, tmp_path) == len(seeds)


def test_calls_are_functions_of_their_seeds_and_reach_every_command(tmp_path):
    calls = [make_call(seed, tmp_path) for seed in SEEDS]
    assert calls == [make_call(seed, tmp_path) for seed in SEEDS]
    assert {call[0] for call in CALLS} <= {call[0] for call in calls if call}


def test_a_command_that_stumbles_is_found(monkeypatch):
    monkeypatch.setattr("cli_fuzz.main", lambda arguments: 1 / 0)
    assert "ZeroDivisionError" in complaint_about(["explain"])
    monkeypatch.setattr("cli_fuzz.main", lambda arguments: 1)
    assert "not one line" in complaint_about(["explain"])
    monkeypatch.setattr("cli_fuzz.main", lambda arguments: 139)
    assert "exit code 139" in complaint_about(["explain"])
