"""Images for ``protail bench``: found before anything is trained."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protail.bench.wanted import Draw
    from protail.data.sets import DataSet


class Images:
    """Find the images of a draw: in an exported file that holds them, else by name.

    Parameters
    ----------
    files : list of Path
        Exported draws.
    root, lists : Path or None
        Where other data is, as for ``protail train``. A folder of several data sets has a folder
        for each, called by its name.
    """

    def __init__(self, files: list[Path], root: Path | None, lists: Path | None = None) -> None:
        for file in files:
            if not file.is_file():
                raise ValueError(
                    f"--draw {file}: there is no such file; expected an exported draw."
                )
        self._files, self._root, self._lists = files, root, lists
        self._found: dict[Draw, DataSet] = {}

    def __call__(self, draw: Draw) -> DataSet:
        """Give the images of a draw."""
        from dataclasses import replace

        from protail.cli._dataset_options import hold_out
        from protail.recipes.search import aside_data

        # What is in a folder is the same whatever it is taken for.
        draw = replace(draw, miniature=0)
        if draw not in self._found:
            if draw.aside_from:
                narrow = replace(draw, aside_from=0.0)
                wide = replace(narrow, imbalance=draw.aside_from)
                data = aside_data(self(wide), self(narrow))
            else:
                data = self._drawn(draw) if draw.imbalance else self._listed(draw)
            if draw.held_out:
                data = hold_out(data, draw.held_out, draw.held_out_seed)
            self._found[draw] = data
        return self._found[draw]

    def find_all(self, draws: Iterable[Draw]) -> None:
        """Find the images of several draws; the first that is not there ends it.

        Parameters
        ----------
        draws : iterable of Draw
            What is to be trained on.
        """
        from protail.data.sets import DataSetError

        wanted = dict.fromkeys(draws)
        for draw in wanted:
            try:
                self(draw)
            except DataSetError as error:
                others = {each.dataset for each in wanted} - {draw.dataset}
                advice = "" if not others else " --only leaves its cells out."
                raise DataSetError(f"{error} Nothing was begun.{advice}") from error

    def _drawn(self, draw: Draw) -> DataSet:
        from protail.data.sets import OtherDrawError, load_dataset, require_images

        wanted: dict[str, Any] = {"imbalance": draw.imbalance, "selection": draw.selection}
        for file in self._files:
            try:
                found = require_images(load_dataset(file, **wanted), "train on")
            except OtherDrawError:
                continue
            if found.name == draw.dataset:
                return found
        named = load_dataset(draw.dataset, root=self._root, **wanted)
        return require_images(named, "train on")

    def _listed(self, draw: Draw) -> DataSet:
        from protail.cli._dataset_options import check_test_images
        from protail.data.sets import load_dataset, require_images

        root = self._root
        if root is not None and (root / draw.dataset).is_dir():
            root = root / draw.dataset
        data = require_images(load_dataset(draw.dataset, root=root, lists=self._lists), "train on")
        check_test_images(data, "Replace them")
        return data
