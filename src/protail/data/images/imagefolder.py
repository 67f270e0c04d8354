"""A user's own photos: a folder for every class."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from protail._messages import first_few
from protail.data.images.image_set import (
    DataSet,
    DataSetError,
    ImageSet,
    assemble,
    readable,
    same_content,
)
from protail.data.images.registry import register_dataset
from protail.data.tables import split

# Of files that are images.
ENDINGS = (
    *(".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif"),
    *(".tif", ".tiff", ".ppm", ".pgm", ".pbm"),
)
# Which part a folder of this name holds; where there are several, the last one counts.
_FOLDERS = {"train": "train", "test": "test"} | dict.fromkeys(
    ("validation", "valid", "val"), "validation"
)


@register_dataset("imagefolder")
def imagefolder(
    root: str | os.PathLike[str] | None,
    test_share: float = 0.2,
    seed: int = 0,
    on_bad_image: str = "error",
) -> DataSet:
    """Your own photos: class folders, in train/val/test or split here."""
    if root is None or not os.path.isdir(root):
        raise DataSetError(
            f"imagefolder: {root} is no folder; expected one that holds a folder of photos for "
            "every class. Name it (root=, --data-root)."
        )
    folder = Path(root)
    given = _given_parts(folder)
    if given:
        classes = _class_folders(given["train"])
        parts = {part: _read_class_folders(place, classes) for part, place in given.items()}
        description = {"split": {part: place.name for part, place in given.items()}}
        return assemble("imagefolder", parts, on_bad_image=on_bad_image, description=description)
    everything = _read_class_folders(folder, _class_folders(folder))
    # Before the split: a rare class must not lose what it was to be trained on.
    fine = readable("imagefolder", everything, on_bad_image, "train")
    train, test = split(fine.labels, share=test_share, groups=same_content(fine), seed=seed)
    if not test.size:
        raise DataSetError(
            f"imagefolder: {folder} has one image, or copies of one, in every class; expected two "
            "of some class, one of them to test on. Add images."
        )
    return assemble(
        "imagefolder",
        {"train": fine.subset(train), "test": fine.subset(test)},
        already_skipped=len(everything) - len(fine),
        description={"split": {"test_share": test_share, "seed": seed}},
    )


def _given_parts(root: Path) -> dict[str, Path]:
    """Find the folders of train, test and validation; nothing where classes lie in ``root``."""
    parts = {part: root / name for name, part in _FOLDERS.items() if (root / name).is_dir()}
    if "train" not in parts:
        return {}
    if "test" not in parts and "validation" in parts:
        parts["test"] = parts.pop("validation")  # all there is to test on
    if "test" not in parts:
        raise DataSetError(
            f"imagefolder: {root} has a folder train, but no test; expected both. To have it split "
            f"here, name {parts['train']} itself."
        )
    return parts


def _class_folders(root: Path) -> list[str]:
    """List the folders in ``root``; Finder's and hidden ones are none of a class."""
    names = sorted(
        entry.name
        for entry in os.scandir(root)
        if entry.is_dir() and not entry.name.startswith((".", "__MACOSX"))
    )
    if not names:
        raise DataSetError(
            f"imagefolder: {root} holds no folders; expected a folder of images for every class."
        )
    return names


def _read_class_folders(root: Path, classes: list[str]) -> ImageSet:
    """List the images below every class folder in ``root``, each folder one of ``classes``."""
    there = _class_folders(root)
    if unknown := sorted(set(there) - set(classes)):
        raise DataSetError(
            f"imagefolder: {root} has class folders that the folder train has not "
            f"({first_few(unknown)}); expected the same classes. Rename or remove them."
        )
    images = {name: _images_below(root / name, root) for name in there}
    if empty := [root / name for name, files in images.items() if not files]:
        raise DataSetError(
            f"imagefolder: {first_few(empty)} holds no image; expected at least one in every "
            f"class folder ({', '.join(ENDINGS)}). Add images, or remove the folder."
        )
    codes = {name: code for code, name in enumerate(classes)}
    labels = [codes[name] for name in there for _ in images[name]]
    files = tuple(file for name in there for file in images[name])
    return ImageSet(np.array(labels), tuple(classes), files=files, folder=root)


def _images_below(folder: Path, root: Path) -> list[str]:
    """List the image files at any depth below ``folder``, relative to ``root``."""
    return sorted(
        Path(place, file).relative_to(root).as_posix()
        for place, _, names in os.walk(folder)
        for file in names
        if file.lower().endswith(ENDINGS) and not file.startswith(".")
    )
