"""Calibration and learning on honest residuals, against scipy's minimum of the same function."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import logsumexp

from protail.estimator._learning import calibrate, learn_residual


def surprise_by_loop(sharpness, tau, logits, code, weight):
    """Average the negative log-likelihood of each class's rows, then those of the classes."""
    by_class = {}
    for row, label in zip(logits, code, strict=True):
        adjusted = sharpness * row - tau * np.log(weight)
        by_class.setdefault(label, []).append(logsumexp(adjusted) - adjusted[label])
    return np.mean([np.mean(losses) for losses in by_class.values()])


def noisy_logits(counts, seed, noise=2.0):
    rng = np.random.default_rng(seed)
    code = np.repeat(np.arange(len(counts)), counts)
    logits = rng.normal(size=(len(code), len(counts))) * noise
    logits[np.arange(len(code)), code] += 2
    return logits + 0.5 * np.log(counts), code


@given(st.lists(st.integers(2, 12), min_size=2, max_size=5), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_calibration_is_the_minimum(counts, seed):
    logits, code = noisy_logits(counts, seed)
    weight = torch.tensor(counts, dtype=torch.float64)
    found = calibrate(torch.from_numpy(logits), torch.from_numpy(code), weight)

    def objective(guess):
        away = np.log(max(guess[0], 1e-9)) ** 2 + guess[1] ** 2
        return surprise_by_loop(*guess, logits, code, np.array(counts)) + away / 2 / len(code)

    chosen = found.sharpness, found.tau
    surprise = surprise_by_loop(*chosen, logits, code, np.array(counts))
    np.testing.assert_allclose(found.surprise, surprise, rtol=1e-9)
    best = minimize(objective, chosen, method="Nelder-Mead")
    assert objective(chosen) <= best.fun + 1e-6


def test_calibration_takes_off_what_favours_large_classes():
    logits, code = noisy_logits([400, 40, 8], 1)
    weight = torch.tensor([400.0, 40.0, 8.0]).double()
    assert calibrate(torch.from_numpy(logits), torch.from_numpy(code), weight).tau > 0


def test_a_class_without_rows_takes_no_part():
    logits, code = noisy_logits([9, 5], 0)
    wide = np.column_stack([logits, np.full(len(logits), -np.inf)])
    weight = torch.tensor([9.0, 5.0]).double()
    narrow = calibrate(torch.from_numpy(logits), torch.from_numpy(code), weight)
    more = torch.tensor([9.0, 5.0, 0.0]).double()
    assert calibrate(torch.from_numpy(wide), torch.from_numpy(code), more) == narrow


@given(st.integers(0, 99), st.sampled_from([0.5, 5.0, 50.0]))
@settings(max_examples=20, deadline=None)
def test_what_is_added_is_the_minimum(seed, ridge):
    rng = np.random.default_rng(seed)
    z, base = rng.normal(size=(12, 4)), rng.normal(size=(12, 3))
    code = rng.integers(0, 3, 12)

    def loss(flat):
        added = flat.reshape(3, 4)
        logits = base + z @ added.T
        return (logsumexp(logits, 1) - logits[np.arange(12), code]).sum() + (
            ridge / 2 * np.square(added).sum()
        )

    given_rows = torch.from_numpy(z), torch.from_numpy(code), torch.from_numpy(base)
    added = learn_residual(*given_rows, ridge, n_steps=100, near=1e-15)
    best = minimize(loss, np.zeros(12))
    np.testing.assert_allclose(loss(added.numpy().ravel()), best.fun, rtol=1e-6)
    np.testing.assert_allclose(added.numpy(), best.x.reshape(3, 4), atol=1e-3)


def test_rows_that_are_already_right_pull_little():
    rng = np.random.default_rng(0)
    z, code = torch.from_numpy(rng.normal(size=(30, 5))), torch.arange(30) % 3
    known = 20 * torch.nn.functional.one_hot(code).double()
    learned, unknown = (learn_residual(z, code, base, 1.0) for base in (known, 0 * known))
    assert learned.norm() < 1e-3 * unknown.norm()
