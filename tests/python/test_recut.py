# SPDX-License-Identifier: Apache-2.0
"""DDP's buckets of one step, cut to those that were saved."""

import torch

from tidegate.recut import Recut, fits

WHOLE = [("a", 2, 0), ("b", 3, 0), ("c", 1, 0)]
SAVED = [[("c", 1, 0), ("a", 2, 0)], [("b", 3, 0)]]


def test_layers_go_to_the_saved_buckets_and_their_means_come_back():
    whole = torch.tensor([1.0, 2, 3, 4, 5, 6])
    given = [(WHOLE, whole)]
    assert fits(SAVED, given)
    recut = Recut(SAVED, given)
    assert [buffer.tolist() for buffer in recut.buffers] == [[6, 1, 2], [3, 4, 5]]
    for buffer in recut.buffers:
        buffer.mul_(10)
    assert not recut.finish(1)
    assert whole.tolist() == [1, 2, 3, 4, 5, 6]  # not before all are there
    assert recut.finish(1)
    assert whole.tolist() == [10, 20, 30, 40, 50, 60]


def test_several_buckets_become_several_others():
    one, two = torch.tensor([1.0, 2, 3]), torch.tensor([4.0])
    layout = [[("y", 1, 0)], [("z", 1, 0), ("x", 2, 2)]]
    recut = Recut(layout, [([("x", 2, 2), ("y", 1, 0)], one), ([("z", 1, 0)], two)])
    assert [buffer.tolist() for buffer in recut.buffers] == [[3], [4, 1, 2]]
    for buffer in recut.buffers:
        buffer.neg_()
    assert recut.finish(2)
    assert (one.tolist(), two.tolist()) == ([-1, -2, -3], [-4])


def test_what_tidegate_does_not_average_stays_as_it_is():
    embedding = torch.ones(2, dtype=torch.float64)
    given = [([], embedding), ([("a", 1, 0)], torch.tensor([1.0]))]
    layout = [[("a", 1, 0)], []]
    assert fits(layout, given)
    recut = Recut(layout, given)
    assert recut.buffers[1] is embedding
    assert recut.finish(2)


def test_layouts_that_do_not_fit():
    given = [(WHOLE, torch.zeros(6))]
    assert not fits([WHOLE[:2]], given)  # a layer was added
    assert not fits([WHOLE, [("d", 1, 0)]], given)  # or removed
    assert not fits([[("a", 2, 2), *WHOLE[1:]]], given)  # or has another shape
    assert not fits([WHOLE, []], given)  # or a bucket of another kind was there
    mixed = [(WHOLE[:1], torch.zeros(2)), (WHOLE[1:], torch.zeros(4, dtype=torch.bfloat16))]
    assert not fits([WHOLE], mixed)
    assert fits([WHOLE[:1], WHOLE[1:]], mixed)
