"""The same numbers on a GPU, the same bits every time, and inside a captured graph."""

import pytest
import torch

from protail.ops import chunked, distances, fused, gaps, loss, nearest, reference, top_k
from protail.ops._precision import rounding
from reference.problems import ALL_DISTANCES, DISTANCES, SCHEMES, make_problem

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def on_gpu(problem):
    for name in ("x", "prototypes", "target", "temperature", "adjustment"):
        value = getattr(problem, name)
        setattr(problem, name, None if value is None else value.cuda())
    if problem.matrix:
        problem.distance.cuda()
    return problem


def forms(scheme):
    yield reference.loss, {}
    yield chunked.loss, {"memory_budget": 2**16}
    if scheme != "dense":
        yield fused.loss, {}


def test_all_forms_equal_the_cpu():
    for distance in ALL_DISTANCES:
        for scheme in SCHEMES:
            shape, dtype = (40, 60, 32), torch.float32
            cpu = make_problem(1, shape, distance, scheme, offset=10.0, dtype=dtype)
            expected_loss, expected = cpu.loss_and_gradients(reference.loss)
            gpu = on_gpu(make_problem(1, shape, distance, scheme, offset=10.0, dtype=dtype))
            for form, options in forms(scheme):
                value, gradients = gpu.loss_and_gradients(form, **options)
                torch.testing.assert_close(value.cpu(), expected_loss, rtol=1e-5, atol=1e-5)
                for one, other in zip(gradients, expected, strict=True):
                    if one is not None:
                        torch.testing.assert_close(one.cpu(), other, rtol=2e-3, atol=2e-5)
            args = gpu.x, gpu.prototypes
            found = top_k(*args, 3, **gpu.options)
            same = top_k(cpu.x, cpu.prototypes, 3, **cpu.options)
            assert torch.equal(found.classes_bk.cpu(), same.classes_bk)
            assert torch.equal(nearest(*args, **gpu.options).cpu(), same.classes_bk[:, 0])
            with torch.no_grad():
                torch.testing.assert_close(
                    distances(*args, **gpu.options).cpu(),
                    distances(cpu.x, cpu.prototypes, **cpu.options),
                    rtol=1e-4,
                    atol=1e-5,
                )


@pytest.mark.parametrize("n_rows", [512, 4096])
def test_the_same_bits_every_time(n_rows):
    """Few rows and many are added up by different kernels."""
    shape = (n_rows, 5, 64)
    problem = on_gpu(make_problem(2, shape, "euclidean", "channel", dtype=torch.float32))
    for form, options in forms("channel"):
        first = problem.loss_and_gradients(form, **options)
        for _ in range(5):
            again = problem.loss_and_gradients(form, **options)
            assert torch.equal(first[0], again[0])
            assert all(torch.equal(a, b) for a, b in zip(first[1], again[1], strict=True))


@pytest.mark.parametrize("distance", DISTANCES)
def test_rows_of_every_length_equal_the_cpu(distance):
    cpu = make_problem(5, (40, 30, 16), distance, dtype=torch.float32)
    for scale in (1e-30, 1.0, 1e10, 1e20, 1e30):
        x = cpu.x * scale
        args = x.cuda(), cpu.prototypes.cuda()
        expected = gaps(x, cpu.prototypes, distance)
        found = gaps(*args, distance)
        torch.testing.assert_close(found.gap_bc.cpu(), expected.gap_bc, rtol=1e-3, atol=1e-4)
        assert torch.equal(
            nearest(*args, distance=distance).cpu(),
            nearest(x, cpu.prototypes, distance=distance),
        )


def test_a_training_step_can_be_captured():
    for distance in ALL_DISTANCES:
        for scheme in SCHEMES:
            problem = on_gpu(make_problem(3, (64, 20, 16), distance, scheme, dtype=torch.float32))
            leaves = [problem.prototypes.requires_grad_()]
            if scheme is not None:
                leaves.append(problem.temperature.requires_grad_())

            def step(problem=problem, leaves=leaves):
                value = loss(problem.x, problem.prototypes, problem.target, **problem.options)
                return value.detach(), torch.autograd.grad(value, leaves)

            expected = step()
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                step()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                found = step()
            graph.replay()
            torch.cuda.synchronize()
            torch.testing.assert_close(found[0], expected[0])
            for one, other in zip(found[1], expected[1], strict=True):
                torch.testing.assert_close(one, other)


def test_rounding_bounds_the_expanded_square():
    worst = {}
    for precision in ("highest", "high"):
        torch.set_float32_matmul_precision(precision)
        try:
            for n_features in (1, 64, 512, 2048, 16384):
                for make in (torch.rand, torch.randn):
                    c = make(200, n_features, device="cuda")
                    x = c[:100] * (1 + 1e-4 * torch.randn(100, n_features, device="cuda"))
                    size = x.square().sum(1, keepdim=True) + c.square().sum(1)
                    found = torch.addmm(size, x, c.mT, alpha=-2).double()
                    double = x.double(), c.double()
                    exact = double[0].square().sum(1, keepdim=True) + double[1].square().sum(1)
                    exact = torch.addmm(exact, double[0], double[1].mT, alpha=-2)
                    error = ((found - exact).abs() / size).max().item()
                    key = precision, n_features
                    bound = rounding(n_features, torch.float32, c.device)
                    worst[key] = max(worst.get(key, 0), error / bound)
        finally:
            torch.set_float32_matmul_precision("highest")
    assert max(worst.values()) < 0.7, worst


def test_shortened_products_stay_bounded_and_exact_where_it_matters():
    torch.set_float32_matmul_precision("high")
    try:
        problem = on_gpu(make_problem(4, (64, 50, 64), offset=10.0, dtype=torch.float32))
        problem.prototypes[25:] = problem.prototypes[:25] + 1e-4
        problem.x[:25] = problem.prototypes[:25]
        exact = distances(problem.x.double(), problem.prototypes.double())
        assert torch.equal(nearest(problem.x, problem.prototypes), exact.argmin(1))
        for form, options in forms(None):
            value, gradients = problem.loss_and_gradients(form, **options)
            assert value.isfinite()
            # Sixty-four rows share the mean: no row may pull harder than one half.
            assert gradients[0].norm(dim=1).max() * 64 <= 1.01
    finally:
        torch.set_float32_matmul_precision("highest")


def test_many_classes_stay_within_the_budget():
    x, target = torch.randn(64, 512, device="cuda"), torch.randint(100_000, (64,), device="cuda")
    prototypes = torch.randn(100_000, 512, device="cuda", requires_grad=True)
    for budget in (2**24, 2**26):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        value = chunked.loss(x, prototypes, target, memory_budget=budget)
        (gradient,) = torch.autograd.grad(value, prototypes)
        gradient_bytes = 4 * gradient.numel()
        assert torch.cuda.max_memory_allocated() - before <= gradient_bytes + budget
        del gradient, value
