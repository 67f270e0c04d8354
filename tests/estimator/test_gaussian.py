"""The closed form against float64 loops that fit again without each row."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.readers import peak, reset_peak
from protail.estimator._gaussian import ClosedForm, Statistics
from reference.gaussian_by_loop import logits_by_loop


def problem(counts, n_channels, seed):
    rng = np.random.default_rng(seed)
    code = np.repeat(np.arange(len(counts)), counts)
    centres = 2 * rng.normal(size=(len(counts), n_channels))
    x = centres[code] + rng.normal(size=(len(code), n_channels)) @ rng.normal(
        size=(n_channels,) * 2
    )
    return x, code


counts = st.lists(st.integers(1, 6), min_size=2, max_size=5).filter(lambda c: max(c) >= 3)


@given(
    counts,
    st.integers(1, 12),
    st.sampled_from([0.01, 1.0, 30.0]),
    st.sampled_from([0.3, 0.9, 1.0]),
    st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_prototypes_are_those_of_the_loop(counts, n_channels, ridge, common, seed):
    x, code = problem(counts, n_channels, seed)
    given_rows = torch.from_numpy(x), torch.from_numpy(code)
    statistics = Statistics.of(*given_rows, len(counts))
    form = ClosedForm.of(statistics, ridge, common=common)
    absolute = ridge * float(statistics.within.diagonal().mean())
    new = np.random.default_rng(seed + 1).normal(size=(3, n_channels))
    expected = logits_by_loop(x, code, new, len(counts), absolute, form.kappa, common)
    np.testing.assert_allclose(
        form.logits(form.mapped(torch.from_numpy(new))), expected, rtol=1e-7, atol=1e-7
    )


@given(counts, st.integers(1, 12), st.sampled_from([0.01, 1.0, 30.0]), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_a_row_left_out_is_as_if_it_had_never_been(counts, n_channels, ridge, seed):
    x, code = problem(counts, n_channels, seed)
    statistics = Statistics.of(torch.from_numpy(x), torch.from_numpy(code), len(counts))
    form = ClosedForm.of(statistics, ridge, common=1.0)
    held = np.flatnonzero(np.array(counts)[code] >= 2)
    if statistics.degrees < 2:
        return
    # The ridge is kept in units of what the covariance was divided by.
    ratio = form.degrees / (form.degrees - 1)
    absolute = ratio * ridge * float(statistics.within.diagonal().mean())
    found = form.without(
        form.mapped(torch.from_numpy(x[held])), torch.from_numpy(code[held])
    ).logits()
    for place, row in enumerate(held):
        rest = np.arange(len(x)) != row
        expected = logits_by_loop(x[rest], code[rest], x[[row]], len(counts), absolute, form.kappa)
        np.testing.assert_allclose(found[place], expected[0], rtol=1e-5, atol=1e-5)


def test_rows_left_out_are_scored_as_after_a_fit_without_them_where_others_lend_directions():
    """How class means differ is kept from the fit with the row: it moves by a row's part in it."""
    counts = [12, 9, 7, 5, 4, 3, 3, 2, 2]
    x, code = problem(counts, 40, 0)
    statistics = Statistics.of(torch.from_numpy(x), torch.from_numpy(code), len(counts))
    form = ClosedForm.of(statistics, 1.0)
    mapped = form.mapped(torch.from_numpy(x))
    found, known = form.without(mapped, torch.from_numpy(code)).logits(), form.logits(mapped)
    absolute = form.degrees / (form.degrees - 1) * float(statistics.within.diagonal().mean())
    expected = np.empty(found.shape)
    for row in range(len(x)):
        rest = np.arange(len(x)) != row
        (expected[row],) = logits_by_loop(
            x[rest], code[rest], x[[row]], len(counts), absolute, form.kappa, form.common
        )
    off = np.sqrt(np.mean((found.numpy() - expected) ** 2))
    assert off < 0.1 * np.sqrt(np.mean((known.numpy() - expected) ** 2))


def test_statistics_of_parts_add_up():
    x, code = (torch.from_numpy(part) for part in problem([5, 4, 3], 4, 0))
    whole = Statistics.of(x, code, 3)
    parts = Statistics.of(x[:5], code[:5], 3) + Statistics.of(x[5:], code[5:], 3)
    for one, other in zip(vars(whole).values(), vars(parts).values(), strict=True):
        torch.testing.assert_close(one, other)


def test_class_means_are_trusted_more_the_more_rows_a_class_has():
    x, code = (torch.from_numpy(part) for part in problem([50, 10, 2], 8, 1))
    form = ClosedForm.of(Statistics.of(x, code, 3), 1.0)
    kept = form.shrink(form.weight_c)
    assert kept[0] > kept[1] > kept[2]


@pytest.mark.parametrize("x", [torch.zeros(4, 3), torch.ones(4, 3)])
def test_rows_that_are_all_alike_give_finite_numbers(x):
    form = ClosedForm.of(Statistics.of(x, torch.tensor([0, 0, 1, 1]), 2), 1.0)
    assert form.logits(form.mapped(x)).isfinite().all()


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measured on Linux only")
def test_few_rows_of_many_classes_take_no_table_of_classes():
    n_classes = 20_000
    code = torch.arange(n_classes).repeat(2)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(len(code), 8)).astype(np.float32))
    form = ClosedForm.of(Statistics.of(x, code, n_classes), 1.0, x.dtype)
    held = reset_peak()
    without = form.without(form.mapped(x[:50]), code[:50])
    said = without.products(form.mapped(x[:50]), form.prototypes)
    assert without.logits().shape == said.shape == (50, n_classes)
    assert peak() - held < 400 * 2**20  # classes x classes would be 1,526 MiB
