"""``protail demo``: a page to drop photos on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from protail._messages import first_few, imported
from protail.cli import options as opt
from protail.cli.command import Voice, command, make_app
from protail.cli.serve import Host, Port
from protail.cli.sources import Model

Photos = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Training photos to show, a folder for each class."),
]


@command
def demo(
    voice: Voice,
    model: opt.ModelFolder,
    photos: Photos = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    device: opt.Device = "auto",
) -> None:
    """Show a page: drop a photo, see its nearest prototypes with training examples.

    The page loads nothing from anywhere else, and photos go nowhere but to this machine.
    """
    for package in ("fastapi", "uvicorn"):
        imported(package, "serving a model", package, "serve")
    from protail.cli.service import Answerer, Limits, Thumbnails, run_service

    answerer = Answerer(Model.load(model, device))
    if not answerer.takes_photos:
        raise ValueError(
            f"{model} takes feature rows, and there is nothing to drop; expected a model of "
            "photos, with a backbone. Ask this one with protail predict or protail serve."
        )
    examples = Thumbnails({})
    if photos is not None:
        classes = answerer.model.classes.tolist()
        examples = Thumbnails.in_folders(photos, classes)
        if bare := [name for code, name in enumerate(classes) if not examples.number(code)]:
            voice.say(
                f"Classes without a photo in {photos}, shown without: {len(bare):,} "
                f"({first_few(bare)}). Give each a folder of that name to see some."
            )
    limits = Limits()
    run_service(answerer, voice, host=host, port=port, limits=limits, examples=examples)


app = make_app(demo, "protail demo model --photos photos")
