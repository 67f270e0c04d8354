"""Rows taken, scaled and added."""

import torch

from protail.ops import add_rows_, unit_rows


def test_add_rows_is_a_sum_by_index():
    generator = torch.manual_seed(0)
    table, rows = torch.randn(5, 3, generator=generator), torch.randn(40, 3, generator=generator)
    index = torch.randint(5, (40,), generator=generator)
    expected = table.clone()
    for i, row in zip(index, rows, strict=True):
        expected[i] += -2 * row
    add_rows_(table, index, rows, alpha=-2)
    torch.testing.assert_close(table, expected)


def test_unit_rows_keep_zero_and_have_its_gradient():
    rows = torch.tensor([[0.0, 0.0], [3.0, 4.0], [1e-30, 0.0]], requires_grad=True)
    units, zero = unit_rows(rows)
    assert zero.tolist() == [1, 0, 1]
    torch.testing.assert_close(units, torch.tensor([[0.0, 0.0], [0.6, 0.8], [0.0, 0.0]]))
    (gradient,) = torch.autograd.grad(units[:, 0].sum(), rows)
    torch.testing.assert_close(gradient[1], torch.tensor([0.128, -0.096]))
    assert (gradient[[0, 2]] == 0).all()
