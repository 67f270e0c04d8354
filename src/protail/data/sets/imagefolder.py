"""A user's own photos: a folder for every class."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from protail.data.features import split
from protail.data.sets._errors import DataSetError, first_few
from protail.data.sets._files_on_disk import (
    assemble,
    check_classes_left,
    readable,
    same_content,
)
from protail.data.sets.images import DataSet, ImageSet
from protail.data.sets.registry import register_dataset

# Of files that are images.
ENDINGS = (
    *(".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif"),
    *(".tif", ".tiff", ".ppm", ".pgm", ".pbm"),
)
_VALIDATION = ("val", "valid", "validation")


@register_dataset("imagefolder")
def imagefolder(
    root: str | os.PathLike[str] | None,
    test_share: float = 0.2,
    seed: int = 0,
    on_bad_image: str = "error",
) -> DataSet:
    """Your own photos: class folders, in train/val/test or split here."""
    if root is None:
        raise DataSetError(
            "imagefolder: no folder is named; expected the one that holds the photos. Name it "
            "(root=, --data-root)."
        )
    folder = Path(root)
    if not folder.is_dir():
        raise DataSetError(
            f"imagefolder: {folder} is no folder; expected one that holds a folder for every "
            "class. Check the path."
        )
    given = _given_parts(folder)
    if given:
        parts = _read_parts(given)
        description = {"split": {part: place.name for part, place in given.items()}}
        return assemble("imagefolder", parts, on_bad_image=on_bad_image, description=description)
    everything = _read_class_folders(folder, _class_folders(folder))
    # Before the split: a rare class must not lose what it was to be trained on.
    fine = readable("imagefolder", everything, on_bad_image)
    check_classes_left("imagefolder", everything, fine)
    train, test = split(fine.labels, share=test_share, groups=same_content(fine), seed=seed)
    if not test.size:
        raise DataSetError(
            f"imagefolder: {folder} has one image, or copies of one, in every class; expected two "
            "of some class, one to judge on. Add images."
        )
    return assemble(
        "imagefolder",
        {"train": fine.subset(train), "test": fine.subset(test)},
        on_bad_image="error",
        already_skipped=len(everything) - len(fine),
        description={"split": {"test_share": test_share, "seed": seed}},
    )


def _given_parts(root: Path) -> dict[str, Path]:
    """Find the folders of train, test and validation; nothing where classes lie in ``root``."""
    train, test = root / "train", root / "test"
    validation = next((root / name for name in _VALIDATION if (root / name).is_dir()), None)
    if not train.is_dir():
        return {}
    if test.is_dir():
        parts = {"train": train, "test": test}
        return parts if validation is None else {**parts, "validation": validation}
    if validation is None:
        raise DataSetError(
            f"imagefolder: {root} has a folder train, but no test; expected both. To have it split "
            f"here, name {train} itself."
        )
    return {"train": train, "test": validation}


def _read_parts(given: dict[str, Path]) -> dict[str, ImageSet]:
    folders = _class_folders(given["train"])
    parts = {}
    for part, place in given.items():
        there = _class_folders(place)
        unknown = [name for name in there if name not in folders]
        if unknown:
            raise DataSetError(
                f"imagefolder: {place} has class folders that {given['train']} has not "
                f"({first_few(unknown)}); expected the same classes. Rename or remove them."
            )
        parts[part] = _read_class_folders(place, folders, there)
    return parts


def _class_folders(root: Path) -> list[str]:
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


def _read_class_folders(root: Path, classes: list[str], there: list[str] | None = None) -> ImageSet:
    files: list[str] = []
    labels: list[int] = []
    empty: list[Path] = []
    codes = {name: code for code, name in enumerate(classes)}
    for name in classes if there is None else there:
        found = _images_below(root / name, root)
        if not found:
            empty.append(root / name)
        files += found
        labels += [codes[name]] * len(found)
    if empty:
        raise DataSetError(
            f"imagefolder: {first_few(empty)} holds no image; expected at least one in every "
            f"class folder ({', '.join(ENDINGS)}). Add images, or remove the folder."
        )
    return ImageSet(np.array(labels), tuple(classes), files=tuple(files), folder=root)


def _images_below(folder: Path, root: Path) -> list[str]:
    return sorted(
        Path(place, file).relative_to(root).as_posix()
        for place, _, names in os.walk(folder)
        for file in names
        if file.lower().endswith(ENDINGS) and not file.startswith(".")
    )
