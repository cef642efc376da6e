# SPDX-License-Identifier: Apache-2.0
import pytest
from torch import nn

import tidegate
from tidegate import bucket_table


def stack(layers=8):
    return nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(layers)))  # 256 KiB each


def filled(model):
    return dict(reversed(list(bucket_table.trained_parameters(model).items())))


def test_a_bucket_is_closed_by_the_parameter_that_fills_it():
    table = bucket_table.cut(filled(stack()), 0.5)
    assert table[0] == ["7.weight", "6.weight"]
    assert [len(bucket) for bucket in table] == [2, 2, 2, 2]


def test_without_a_size_the_first_bucket_is_small():
    assert [len(bucket) for bucket in bucket_table.cut(filled(stack(6)))] == [4, 2]


def test_frozen_parameters_have_no_place():
    model = stack()
    model[0].weight.requires_grad_(False)
    assert "0.weight" not in bucket_table.trained_parameters(model)


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ([["0.weight"]], "1.weight"),
        ([["0.weight", "1.weight", "2.weight"]], "2.weight"),
        ([["0.weight", "1.weight"], ["0.weight"]], "0.weight"),
        ([["0.weight", "1.weight"], []], "empty ones"),
    ],
)
def test_a_table_names_every_parameter_once(table, named):
    with pytest.raises(tidegate.Error, match=named) as caught:
        bucket_table.check(table, bucket_table.trained_parameters(stack(2)))
    assert caught.value.kind == "config"
