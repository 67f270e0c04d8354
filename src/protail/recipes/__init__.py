"""Recipes: the stages of a method, written down. One TOML file each.

A file says ``title`` and, if it likes, ``reference`` and ``paper``, and has a table for each
stage, ``[pretraining]``, ``[representation]`` and ``[classifier]``. Their keys are the fields of
`protail.training.settings.RepresentationSettings`, in the first two, and
`protail.training.settings.ClassifierSettings`, and what they leave out keeps its default.

- ``extends = "wd"`` in a stage starts from that stage of another recipe instead: one by name, or
  a file by its path from this one.
- A key that is no field is an option of the stage's head, loss, sampler or method, whichever
  takes it: ``tau = 0.25`` means ``loss_options.tau = 0.25``. The long form always works, and is
  needed where two of them take the same name.
- Another head (loss, sampler, method) than before starts without the options of the one before.
- ``"none"`` stands for nothing, as in ``centroids = "none"``.
"""

from protail.recipes._checks import PARTS
from protail.recipes._loading import load_recipe, recipe_names
from protail.recipes._values import RecipeError, parse_value, toml_text
from protail.recipes.recipe import STAGES, WORDS, Recipe, options_taken, recipe_hash, stage_table

__all__ = [
    "PARTS", "STAGES", "WORDS", "Recipe", "RecipeError", "load_recipe", "options_taken",
    "parse_value", "recipe_hash", "recipe_names", "stage_table", "toml_text",
]  # fmt: skip
