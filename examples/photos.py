"""Classify photos in Python: features once, prototypes, a look at rivals, a network to keep.

    python examples/photos.py PHOTOS [MODEL]

PHOTOS holds a folder of photos for each class, or the folders ``train`` and ``test`` with those.
"""

import sys

import numpy as np
from sklearn.metrics import balanced_accuracy_score

from protail import Network, PrototypeClassifier, baselines
from protail.data.images import find_photos, photo_parts
from protail.data.tables import split
from protail.models.backbones import pretrained_backbone
from protail.training import embed_photos

place, model = sys.argv[1], (sys.argv[2:] or ["photo-model"])[0]
train_place, test_place = photo_parts(place)
backbone = pretrained_backbone()  # the recommended one, from an installed package or the hub


def read(folder):
    """Give features, class names and paths of the photos that can be read."""
    found = find_photos(folder)
    embedded = embed_photos(
        backbone, backbone.input_spec, found.images.paths, cache=f"{model}.features"
    )
    for words in embedded.problems.values():
        print("left out:", words)
    paths = np.array(found.images.paths)
    return embedded.rows[embedded.readable], found.names[embedded.readable], paths


rows, names, paths = read(train_place)
if test_place is None:
    kept, held_out = split(names, fraction=0.2)
    test_rows, test_names = rows[held_out], names[held_out]
    rows, names = rows[kept], names[kept]
else:
    test_rows, test_names, _ = read(test_place)
print(f"{len(names)} photos of {len(set(names))} classes to learn from, {len(test_names)} to test")

classifiers = {
    "prototypes": PrototypeClassifier(random_state=0),
    "nearest class mean": baselines.nearest_class_mean(),
    "logistic regression, logit-adjusted": baselines.logit_adjusted_regression(),
}
for name, classifier in classifiers.items():
    predicted = classifier.fit(rows, names).predict(test_rows)
    print(f"{name}: balanced accuracy {balanced_accuracy_score(test_names, predicted):.3f}")

network = Network(classifiers["prototypes"], backbone=backbone, about="made by examples/photos.py")
network.save(model, overwrite=True)
labels, probabilities = Network.load(model).top_k(paths[0], 2)
print(f"{paths[0]}: {', '.join(map('{} {:.2f}'.format, labels[0], probabilities[0]))}")
