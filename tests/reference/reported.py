"""A classifier and examples with photos, for reports: three things to find are hidden in them."""

import numpy as np

from protail import Network, PrototypeClassifier
from protail.report import Examples, ReportData
from reference.rows import long_tailed_rows

# As nobody should call a class, and as people do.
NAMES = ["<script>alert(1)</script>", "../../x", "a & b", 'say "hi"', "{{ 7 * 7 }}", "lynx"]
COUNTS = (120, 40, 25, 12, 6, 3)
# Rows of what is held out that are hidden: a wrong label, a copy of a training row, a stranger.
MISLABELLED, COPIED, STRANGE = 4, 30, 50


def photos_of(labels, seed):
    """Paint a photo for each label, in a colour of its class."""
    rng = np.random.default_rng(seed)
    colours = np.random.default_rng(5).integers(40, 220, (len(NAMES), 3))
    codes = [NAMES.index(label) for label in labels]
    noise = rng.integers(0, 36, (len(codes), 24, 32, 3))
    return list((colours[codes][:, None, None] + noise).astype(np.uint8))


def reported_data(**options):
    """Fit a classifier and ask it about held-out rows."""
    rows, labels = long_tailed_rows(COUNTS, names=NAMES)
    held_out, truth = long_tailed_rows((12,) * len(NAMES), seed=1, names=NAMES)
    truth = truth.astype(object)
    truth[MISLABELLED] = NAMES[3]
    held_out[COPIED] = rows[170] + 1e-4
    held_out[STRANGE] *= 40
    truth = truth.astype(str)
    classifier = PrototypeClassifier(random_state=0).fit(rows, labels)
    with_photos = options.pop("with_photos", True)
    return ReportData.from_network(
        Network(classifier, about="Made by a test."),
        Examples(
            labels=truth, features=held_out, photos=photos_of(truth, 1) if with_photos else None
        ),
        training=Examples(
            labels=labels, features=rows, photos=photos_of(labels, 0) if with_photos else None
        ),
        **{
            "title": "Birds & <b>beasts</b>",
            "commands": ["protail report 'my model' <x>"],
            **options,
        },
    )
