"""Data sets of images, or of their features: loaded by name, cut to a long tail, exported."""

from protail.data.images.features import (
    BUNDLED_FEATURES,
    FeatureData,
    FeatureSet,
    require_images,
    save_features,
)
from protail.data.images.files import IMAGE_SUFFIXES, read_annotations, read_list
from protail.data.images.image_set import (
    DataSet,
    DataSetError,
    ImageSet,
    in_memory,
    read_image,
    same_content,
    unreadable,
)
from protail.data.images.long_tail import long_tailed_counts, long_tailed_index
from protail.data.images.packed import OtherSubsetError, load_subset, save_subset
from protail.data.images.photos import (
    FoundPhotos,
    content_digests,
    find_photos,
    is_photo,
    is_photo_list,
    photo_parts,
)
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
    "IMAGE_SUFFIXES",
    "DataSet",
    "DataSetError",
    "FeatureData",
    "FeatureSet",
    "FoundPhotos",
    "ImageSet",
    "OtherSubsetError",
    "content_digests",
    "data_root",
    "dataset_names",
    "find_photos",
    "in_memory",
    "is_photo",
    "is_photo_list",
    "load_dataset",
    "load_subset",
    "long_tailed_counts",
    "long_tailed_index",
    "photo_parts",
    "read_annotations",
    "read_image",
    "read_list",
    "register_dataset",
    "require_images",
    "same_content",
    "save_features",
    "save_subset",
    "unreadable",
]
