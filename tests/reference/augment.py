"""What the tests of augment share: images, naive loops, and torchvision's ops one by one."""

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from protail.data import stream_key

WORD = (1 << 64) - 1


def naive_uniform(seed, epoch, index, purpose, draw):
    """Draw one number with Python's whole numbers."""
    state = int(stream_key(seed, purpose)[0])
    state += draw * 0x8CB92BA72F3D8DD7 + epoch * 0xD1B54A32D192ED03 + index * 0xABC98388FB8FAC03
    state &= WORD
    for _ in range(2):
        state ^= state >> 32
        state = state * 0xD6E8FEB86659FD93 & WORD
    return (state >> 40 & (1 << 23) - 1) * 2.0**-23


def noise_images(n, size=(32, 32), seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, 3, *size), generator=generator, dtype=torch.uint8)


def smooth_images(n, size=(32, 32), seed=0):
    """Make something like photographs: few frequencies, saturated spots, flat channels."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(n, 3, 5, 5, generator=generator) * 1.5 - 0.25
    images = torch.nn.functional.interpolate(coarse, size, mode="bicubic").clamp(0, 1) * 255
    images = images.to(torch.uint8)
    images[0, 0] = 77
    images[0, 1, : size[0] - 3] = 255  # too few other pixels for Equalize
    images[-1] = 255
    return images


def all_images(n=4, size=(32, 32)):
    return torch.cat([noise_images(n, size), smooth_images(n, size)])


def crop_flip_loop(image, pad, top, left, mirror):
    image = np.asarray(image)
    if mirror:
        image = image[:, :, ::-1]
    _, height, width = image.shape
    result = np.zeros_like(image)
    for y in range(height):
        for x in range(width):
            row, column = y + top - pad, x + left - pad
            if 0 <= row < height and 0 <= column < width:
                result[:, y, x] = image[:, row, column]
    return torch.from_numpy(result)


def cutout_loop(image, side, middle_y, middle_x):
    result = image.clone()
    _, height, width = image.shape
    for y in range(middle_y - side // 2, middle_y + side // 2):
        for x in range(middle_x - side // 2, middle_x + side // 2):
            if 0 <= y < height and 0 <= x < width:
                result[:, y, x] = 0
    return result


def torchvision_op(images, op, strength, fill=128):
    """Apply one op with torchvision, image by image."""
    from math import atan, degrees

    from torchvision.transforms.v2 import functional as TF

    def affine(image, translate=(0, 0), shear=(0.0, 0.0), center=None):
        return TF.affine(
            image,
            angle=0.0,
            translate=list(translate),
            scale=1.0,
            shear=[degrees(atan(s)) for s in shear],
            fill=fill,
            center=center,
        )

    ops = {
        "Identity": lambda x: x,
        "ShearX": lambda x: affine(x, shear=(strength, 0.0), center=[0, 0]),
        "ShearY": lambda x: affine(x, shear=(0.0, strength), center=[0, 0]),
        "TranslateX": lambda x: affine(x, translate=(int(strength), 0)),
        "TranslateY": lambda x: affine(x, translate=(0, int(strength))),
        "Rotate": lambda x: TF.rotate(x, strength, fill=fill),
        "Brightness": lambda x: TF.adjust_brightness(x, 1 + strength),
        "Color": lambda x: TF.adjust_saturation(x, 1 + strength),
        "Contrast": lambda x: TF.adjust_contrast(x, 1 + strength),
        "Sharpness": lambda x: TF.adjust_sharpness(x, 1 + strength),
        "Posterize": lambda x: TF.posterize(x, int(strength)),
        "Solarize": lambda x: TF.solarize(x, strength),
        "AutoContrast": TF.autocontrast,
        "Equalize": TF.equalize,
        "Invert": TF.invert,
    }
    return torch.stack([ops[op](image) for image in images])


def cutmix_loop(images, partner, weight, centre):
    """Paste boxes pixel by pixel."""
    mixed, others = images.clone(), images[partner]
    _, _, height, width = images.shape
    halves = [
        int(np.float32(np.sqrt(np.float32(1 - weight))) * side) // 2 for side in (height, width)
    ]
    middle = [int(centre[0] * height), int(centre[1] * width)]
    area = 0
    for y in range(height):
        for x in range(width):
            rows = middle[0] - halves[0] <= y < middle[0] + halves[0]
            if rows and middle[1] - halves[1] <= x < middle[1] + halves[1]:
                mixed[:, :, y, x] = others[:, :, y, x]
                area += 1
    return mixed, 1 - area / (height * width)


class Kernels(TorchDispatchMode):
    """Count the ops that would launch a kernel and refuse those that a CUDA graph cannot hold."""

    forbidden = ("_local_scalar_dense", "nonzero", "masked_select", "lift_fresh", "unique")

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().split("::")[1].split(".")[0]
        assert name not in self.forbidden, name
        if not func.is_view and name not in ("empty", "_unsafe_view"):
            self.names.append(name)
        return func(*args, **(kwargs or {}))
