"""The same images on a GPU, and new ones at every replay of a captured graph."""

import pytest
import torch

from protail.data.augment import make_augment, mix, uniforms
from reference.augment import all_images

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
RECIPES = [
    ["crop", "flip", "rotate"],
    ["crop", "flip", "autoaugment", "cutout"],
    ["randaugment"],
    ["autoaugment-imagenet"],
    ["simclr"],
]


def captured(step):
    """Run ``step`` once to warm up, then capture it; give the graph and its output."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = step()
    return graph, output


def test_numbers_are_the_cpus():
    index = torch.randint(0, 2**40, (1000,))
    assert torch.equal(uniforms(1, 2, index.cuda(), 3, 5).cpu(), uniforms(1, 2, index, 3, 5))


@pytest.mark.parametrize("names", RECIPES)
def test_captured_images_are_the_cpus(names):
    images, index = all_images(64), torch.arange(128)
    augment = make_augment(names)
    expected = [augment(images, index, epoch) for epoch in range(3)]
    augment.cuda()
    images, index, epoch = images.cuda(), index.cuda(), torch.zeros((), dtype=torch.int64).cuda()
    graph, output = captured(lambda: augment(images, index, epoch))
    for number, want in enumerate(expected):
        epoch.fill_(number)
        graph.replay()
        off = (output.cpu() - want).abs()
        if names == ["simclr"]:
            # A pixel whose hue lies on a border of the wheel may fall on either side of it.
            assert (off > 0.01).float().mean() < 1e-3
        else:
            # Contrast takes a mean whose last bit depends on the device: a level, rarely.
            assert off.max() < 0.03
            assert (off > 1e-5).float().mean() < 1e-3


@pytest.mark.parametrize("kind", ["mixup", "cutmix", "mixup-cutmix"])
def test_captured_mixes_are_the_cpus(kind):
    images, labels, index = torch.randn(64, 3, 32, 32), torch.arange(64), torch.arange(64)
    weight = torch.tensor(0.3)
    expected = [mix(images, labels, weight, index, epoch, kind=kind) for epoch in range(3)]
    images, labels, index, weight = (t.cuda() for t in (images, labels, index, weight))
    epoch = torch.zeros((), dtype=torch.int64).cuda()
    graph, output = captured(lambda: mix(images, labels, weight, index, epoch, kind=kind))
    for number, want in enumerate(expected):
        epoch.fill_(number)
        graph.replay()
        for got, value in zip(output, want, strict=True):
            torch.testing.assert_close(got.cpu(), value, atol=1e-6, rtol=1e-6)
