"""The page docs/recipes.md: everything a recipe can say, read out of the code.

``python -m reference.recipe_page`` writes the generated part again.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin

from protail.data.augment import AUGMENTS, LOADER_AUGMENTS
from protail.models.backbones import backbone_names
from protail.models.backbones.registry import TIMM_NAMES
from protail.options import OneOf, Option, read_options
from protail.recipes import PARTS, STAGES, toml_text
from reference.documents import ROOT

PAGE = ROOT / "docs" / "recipes.md"
MARK = "<!-- All below is generated from the code: python -m reference.recipe_page -->\n"
_WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false"}


def generated() -> str:
    """Write the part of the page that comes from the code."""
    kinds = dict.fromkeys(STAGES.values())
    names = {kind: [name for name in STAGES if STAGES[name] is kind] for kind in kinds}
    stages = [_stage(" and ".join(f"`[{name}]`" for name in names[kind]), kind) for kind in kinds]
    parts = [_part(part) for part in ("head", "loss", "sampler", "method")]
    return "\n".join([*stages, *parts, _augments(), _backbones()])


def rewritten(page: str) -> str:
    """Put what the code says now in the place of what it said."""
    return page[: page.index(MARK) + len(MARK)] + "\n" + generated()


def _stage(name: str, kind: type) -> str:
    options, about = read_options(kind), _described(kind)
    rows = [
        (
            f"`{field.name}`",
            f"`{toml_text(getattr(kind(), field.name))}`",
            _allowed(options[field.name]),
            about.get(field.name, ""),
        )
        for field in fields(kind)
    ]
    return f"## {name}\n\n{_table(('key', 'default', 'takes', 'what it is'), rows)}"


def _part(part: str) -> str:
    registry = PARTS[part]
    text = f"## Names for `{part}`\n\nWith the options that `{part}_options` takes.\n"
    for name in registry.names():
        factory = registry.factory(name)
        about = _described(factory)
        rows = [
            (
                f"`{key}`",
                "needed" if option.is_required else f"`{toml_text(option.default)}`",
                _allowed(option),
                about.get(key, ""),
            )
            for key, option in registry.options(name).items()
        ]
        first = (inspect.getdoc(factory) or "").split("\n")[0]
        text += f"\n### `{name}`\n\n" + (f"{first}\n\n" if first else "")
        text += (
            _table(("option", "default", "takes", "what it is"), rows) if rows else "No options.\n"
        )
    return text


def _augments() -> str:
    names = dict.fromkeys((*AUGMENTS, *LOADER_AUGMENTS))
    mark = {True: "yes", False: ""}
    rows = [(f"`{name}`", mark[name in AUGMENTS], mark[name in LOADER_AUGMENTS]) for name in names]
    table = _table(("name", "small images in memory", "images in files"), rows)
    return (
        "## Names for `augment`\n\nA list of names, in the order in which they happen; "
        f"[protail.data.augment](api/augment.md) says what each does.\n\n{table}"
    )


def _backbones() -> str:
    rows = [
        (
            f"`{name}`",
            f"`timm/{TIMM_NAMES[name]}`, cut as in the papers" if name in TIMM_NAMES else "ours",
        )
        for name in backbone_names()
    ]
    table = _table(("name", "whose"), rows)
    return (
        "## Names for `backbone`\n\nThese, and every model of timm as `timm/NAME`. For a model of "
        "timm, images in files are resized and normalised as its published weights want them.\n\n"
        f"{table}"
    )


def _allowed(option: Option) -> str:
    if option.allowed is None:
        return _type_words(option.hint)
    if isinstance(option.allowed, OneOf):
        words = ", ".join(f'`"{name}"`' for name in option.allowed.names)
    else:
        words = str(option.allowed).removeprefix("a ").replace("finite ", "")
    return words + (' or `"none"`' if option.may_be_none else "")


def _type_words(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return ", ".join(f'`"{value}"`' for value in get_args(hint))
    if type(None) in get_args(hint):
        others = [_type_words(each) for each in get_args(hint) if each is not type(None)]
        return " or ".join([*others, '`"none"`'])
    if get_origin(hint) is dict:
        return "table"
    if get_origin(hint) is tuple:
        return "list"
    return _WORDS.get(hint, "")


def _described(thing: Any) -> dict[str, str]:
    """Read out of a docstring what it says about each attribute or parameter."""
    lines = (inspect.getdoc(thing) or "").split("\n")
    about: dict[str, str] = {}
    names: list[str] = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if set(following) == {"-"}:
            names = []
        elif line.startswith("    "):
            about |= {name: f"{about.get(name, '')} {line.strip()}".strip() for name in names}
        elif line.strip() and set(line) != {"-"}:
            head = line.partition(" : ")[0]
            names = head.split(", ") if re.fullmatch(r"\w+(, \w+)*", head) else []
    return {name: text.replace("``", "`") for name, text in about.items()}


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
