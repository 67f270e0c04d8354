"""Folders of photos as people have them, made up: patterns that a network tells apart."""

import struct
import zlib

import numpy as np
from PIL import Image

CLASSES = ("ant", "bee", "cat")


def pattern(kind, seed, side=72):
    """Draw stripes, dots or a checkerboard in noisy colours."""
    rng = np.random.default_rng([kind, seed])
    y, x = np.mgrid[:side, :side] + rng.integers(0, 20, (2, 1, 1))
    shape = [np.sin(x / 3), np.sin(x / 5) * np.sin(y / 5), np.sign(np.sin(x / 9) * np.sin(y / 9))]
    colour = rng.uniform(60, 195, 3)
    pixels = colour + 55 * shape[kind][:, :, None] + rng.normal(0, 12, (side, side, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def write_photos(root, counts=(9, 5, 3), first=0, ending="jpg"):
    """Write a folder of photos for each class."""
    for kind, (name, count) in enumerate(zip(CLASSES, counts, strict=False)):
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(first, first + count):
            pattern(kind, number).save(root / name / f"{number}.{ending}")
    return root


def write_bomb(path, side=30_000):
    """Write a PNG file of a few bytes that claims to be huge."""

    def chunk(name, data):
        checked = name + data
        return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    parts = [chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(bytes(1000))), chunk(b"IEND", b"")]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    return path
