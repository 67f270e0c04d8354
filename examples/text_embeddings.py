"""Tell rare classes of text apart: the modules of Python's library by their docstrings.

    python examples/text_embeddings.py

Embeddings of any model will do. So that this runs everywhere without a download, they are made
here by scikit-learn: word counts of docstrings, reduced to 128 numbers. Modules are the classes;
a few have hundreds of docstrings, most have a handful.
"""

import ast
import os
from pathlib import Path

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline

from protail import Evaluation, PrototypeClassifier, baselines

LIBRARY = Path(os.__file__).parent
FEWEST = 5  # docstrings of a module


def docstrings(module: Path) -> list[str]:
    """Read the docstrings of the functions and classes of a module or package."""
    files = sorted(module.rglob("*.py")) if module.is_dir() else [module]
    found = set()
    for file in files:
        if "test" in file.parts or "tests" in file.parts:
            continue
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                text = ast.get_docstring(node) or ""
                if len(text.split()) >= 5:
                    found.add(text)
    return sorted(found)


modules = [path for path in sorted(LIBRARY.iterdir()) if path.suffix == ".py" or path.is_dir()]
modules = [path for path in modules if path.stem not in ("test", "site-packages", "idlelib")]
texts, labels = [], []
for module in modules:
    own = docstrings(module)
    if len(own) >= FEWEST:
        texts += own
        labels += [module.stem] * len(own)
y = np.array(labels)
order = np.random.default_rng(0).permutation(len(y))
test = np.concatenate([order[y[order] == name][:2] for name in np.unique(y)])
train = np.setdiff1d(order, test)

embed = make_pipeline(TfidfVectorizer(sublinear_tf=True), TruncatedSVD(128, random_state=0))
embed.fit([texts[row] for row in train])
X = embed.transform(texts).astype(np.float32)
classes, counts = np.unique(y[train], return_counts=True)
print(f"{len(train)} docstrings of {len(classes)} modules, {counts.max()} to {counts.min()} each")

rivals = {
    "PrototypeClassifier": PrototypeClassifier(),
    "logistic regression, balanced": baselines.balanced_logistic_regression(),
    "nearest class mean": baselines.nearest_class_mean(),
}
for name, classifier in rivals.items():
    predicted = classifier.fit(X[train], y[train]).predict(X[test])
    scores = Evaluation.from_predictions(y[test], predicted, classes=classes, counts=counts)
    print(f"{name:30} {100 * scores.all:5.1f} % right, few {100 * scores.few:5.1f} %")

question = "Return a random element from a non-empty sequence."
row = embed.transform([question]).astype(np.float32)
names, chances = rivals["PrototypeClassifier"].top_k(row, k=3)
print(
    question, "; ".join(f"{n} {100 * p:.0f} %" for n, p in zip(names[0], chances[0], strict=True))
)
