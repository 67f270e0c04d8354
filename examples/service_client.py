"""Ask a model that `protail serve` serves; needs nothing but Python.

    protail serve model &
    python examples/service_client.py http://127.0.0.1:8000 bird.jpg other.png
    python examples/service_client.py http://127.0.0.1:8000 rows.csv

A photo goes as it is; of a csv file, each line is a row of features.
"""

from __future__ import annotations

import csv
import json
import mimetypes
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any


class Client:
    """Send photos and feature rows to a service.

    Parameters
    ----------
    url : str
        Its address, as it says when it starts.
    top_k : int
        Classes to name for each.
    """

    def __init__(self, url: str, top_k: int = 3) -> None:
        self.url, self.top_k = url.rstrip("/"), top_k

    def photo(self, file: Path) -> dict[str, Any]:
        """Ask about one photo."""
        kind = mimetypes.guess_type(file.name)[0] or "image/jpeg"
        (found,) = self._predict(file.read_bytes(), kind)
        return found

    def rows(self, rows: list[list[float]]) -> list[dict[str, Any]]:
        """Ask about rows of features."""
        return self._predict(json.dumps({"features": rows}).encode(), "application/json")

    def health(self) -> dict[str, Any]:
        """Ask what the service is and what it takes."""
        with urllib.request.urlopen(f"{self.url}/healthz", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def _predict(self, body: bytes, kind: str) -> list[dict[str, Any]]:
        request = urllib.request.Request(
            f"{self.url}/predict?top_k={self.top_k}", body, {"Content-Type": kind}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                found: list[dict[str, Any]] = json.load(answer)["predictions"]
        except urllib.error.HTTPError as error:  # it says in words what it did not like
            raise ValueError(json.load(error)["detail"]) from error
        return found


def main(url: str, *files: str) -> int:
    """Print a line for each photo or row; give 1 if one was refused."""
    client = Client(url)
    print(f"{client.health()['classes']} classes at {client.url}")
    n_refused = 0
    for file in map(Path, files):
        try:
            if file.suffix == ".csv":
                with file.open(newline="") as lines:
                    found = client.rows([[float(x) for x in row] for row in csv.reader(lines)])
            else:
                found = [client.photo(file)]
        except ValueError as error:
            n_refused += 1
            print(f"{file}: {error}")
            continue
        for number, each in enumerate(found):
            top = ", ".join(f"{one['label']} {one['probability']:.3f}" for one in each["top"])
            where = f"{file}, row {number}" if len(found) > 1 else file
            print(f"{where}: {top}; novelty {each['novelty']:.3g}")
    return int(n_refused > 0)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
