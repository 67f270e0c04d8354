"""Data sets of images, or of their features: loaded by name, cut to a long tail, exported."""

from protail.data.images.features import (
    BUNDLED_FEATURES,
    FeatureData,
    FeatureSet,
    require_images,
    save_features,
)
from protail.data.images.files import ENDINGS, read_annotations, read_list
from protail.data.images.image_set import (
    DataSet,
    DataSetError,
    ImageSet,
    read_picture,
    same_content,
    unreadable,
)
from protail.data.images.long_tail import long_tailed_counts, long_tailed_index
from protail.data.images.packed import OtherDrawError, load_draw, save_draw
from protail.data.images.registry import (
    DATA_SETS,
    data_root,
    dataset_names,
    load_dataset,
    register_dataset,
)

__all__ = [
    "BUNDLED_FEATURES",
    "DATA_SETS",
    "ENDINGS",
    "DataSet",
    "DataSetError",
    "FeatureData",
    "FeatureSet",
    "ImageSet",
    "OtherDrawError",
    "data_root",
    "dataset_names",
    "load_dataset",
    "load_draw",
    "long_tailed_counts",
    "long_tailed_index",
    "read_annotations",
    "read_list",
    "read_picture",
    "register_dataset",
    "require_images",
    "same_content",
    "save_draw",
    "save_features",
    "unreadable",
]
