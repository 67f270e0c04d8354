"""Data sets of images, or of their features, behind one registry, and draws that travel."""

from protail.data.sets._errors import DataSetError, OtherDrawError
from protail.data.sets._pictures import read_picture
from protail.data.sets.feature_files import save_features
from protail.data.sets.features import FeatureData, FeatureSet, require_images
from protail.data.sets.images import DataSet, ImageSet
from protail.data.sets.inaturalist import read_annotations
from protail.data.sets.listfile import read_list
from protail.data.sets.long_tail import long_tailed_counts, long_tailed_index
from protail.data.sets.packed import load_draw, save_draw
from protail.data.sets.registry import data_root, dataset_names, load_dataset, register_dataset

__all__ = [
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
    "save_draw",
    "save_features",
]
