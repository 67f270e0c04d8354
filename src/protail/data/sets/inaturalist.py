"""iNaturalist 2018: the official JSON files, or list files made from them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from protail._messages import counted
from protail.data.sets._errors import DataSetError, first_few
from protail.data.sets._files_on_disk import assemble, class_names, first_missing
from protail.data.sets.images import DataSet, ImageSet
from protail.data.sets.listfile import Listed, listed_dataset
from protail.data.sets.registry import data_root, register_dataset

_N_CLASSES = 8142
# The official test labels are secret: everyone, the paper included, judges on validation.
_LISTS = {"train": "iNaturalist18_train.txt", "test": "iNaturalist18_val.txt"}
_JSON = {"train": "train2018.json", "test": "val2018.json"}


@register_dataset("inaturalist18")
def inaturalist18(
    root: str | os.PathLike[str] | None,
    lists: str | os.PathLike[str] | None = None,
    on_bad_image: str = "error",
    check_files: bool = True,
) -> DataSet:
    """iNaturalist 2018, 8,142 species: official JSON or list files, and images."""  # noqa: D403
    name = "inaturalist18"
    folder = data_root() / name if root is None else Path(root)
    place = folder if lists is None else Path(lists)
    if not first_missing(place, list(_LISTS.values())):
        return listed_dataset(
            name,
            _LISTS,
            _N_CLASSES,
            folder,
            place,
            on_bad_image=on_bad_image,
            check_files=check_files,
        )
    if first_missing(place, list(_JSON.values())):
        raise DataSetError(
            f"{name}: neither {' and '.join(_JSON.values())} nor {' and '.join(_LISTS.values())} "
            f"found in {place}; expected one pair. Name the folder that holds them (lists=, "
            "--lists) and the folder of the images (root=, --data-root)."
        )
    listed = {part: read_annotations(place / file) for part, file in _JSON.items()}
    classes = class_names(*listed["train"], _N_CLASSES)
    return assemble(
        name,
        {
            part: ImageSet(labels, classes, files=files, folder=folder)
            for part, (files, labels) in listed.items()
        },
        on_bad_image=on_bad_image,
        check_files=check_files,
    )


def read_annotations(path: str | os.PathLike[str], n_classes: int = _N_CLASSES) -> Listed:
    """Read an official file of annotations: which images there are, and the class of each.

    Parameters
    ----------
    path : path-like
        JSON with ``images`` (``id``, ``file_name``) and ``annotations`` (``image_id``,
        ``category_id``).
    n_classes : int, default=8142
        Codes run from 0 to one less.

    Returns
    -------
    files : tuple of str
        Paths, in the order of ``images``.
    labels : ndarray of int64
        The class of each.

    Examples
    --------
    >>> import json, tempfile
    >>> from pathlib import Path
    >>> from protail.data.sets import read_annotations
    >>> file = Path(tempfile.mkdtemp()) / "val2018.json"
    >>> images = [{"id": 7, "file_name": "val/ant.jpg"}]
    >>> annotations = [{"image_id": 7, "category_id": 3}]
    >>> _ = file.write_text(json.dumps({"images": images, "annotations": annotations}))
    >>> read_annotations(file)
    (('val/ant.jpg',), array([3]))
    """
    with _reading(path):
        content = json.loads(Path(path).read_bytes())
        files = {image["id"]: str(image["file_name"]) for image in content["images"]}
        classes: dict[Any, int] = {}
        for annotation in content["annotations"]:
            code = annotation["category_id"]
            if type(code) is not int or not 0 <= code < n_classes:
                raise DataSetError(
                    f"{path}: an image has the category {code!r}; expected a class code from 0 to "
                    f"{n_classes - 1}. Fetch the file again."
                )
            if classes.setdefault(annotation["image_id"], code) != code:
                raise DataSetError(
                    f"{path}: image {annotation['image_id']!r} has two categories; expected one."
                )
    unpaired = [key for key in files if key not in classes]
    unpaired += [key for key in classes if key not in files]
    if unpaired or not files:
        raise DataSetError(
            f"{path}: {counted(len(unpaired), 'image is', 'images are')} not both listed and "
            f"labelled ({first_few(unpaired)}); expected one annotation for every image, "
            "and at least one image. Fetch the file again."
        )
    return tuple(files.values()), np.array([classes[key] for key in files], dtype=np.int64)


@contextmanager
def _reading(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except DataSetError:
        raise
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise DataSetError(
            f"{path}: it cannot be read ({reason[:200]}); expected JSON with 'images' and "
            "'annotations'. It may be cut short: fetch it again."
        ) from error
