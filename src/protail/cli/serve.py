"""``protail serve``: a model that answers over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from protail._messages import imported
from protail.cli import options as opt
from protail.cli.command import Voice, command, make_app
from protail.cli.sources import Model

Host = Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen; 0.0.0.0 is anywhere.")]
Port = Annotated[int, typer.Option(min=0, max=65535, metavar="NUMBER", help="0 is a free one.")]
MaxMegabytes = Annotated[
    float, typer.Option(min=0.001, metavar="MB", help="Largest body that is taken.")
]


@command
def serve(
    voice: Voice,
    model: opt.ModelFolder,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    max_megabytes: MaxMegabytes = 20,
    device: opt.Device = "auto",
) -> None:
    """Serve a model over HTTP, by default to this machine only.

    POST /predict takes a photo or JSON features and gives the likeliest classes, each with its
    probability and distance, and the novelty. GET /healthz, /docs and /openapi.json tell the rest.
    """
    for package in ("fastapi", "uvicorn"):
        imported(package, "serving a model", package, "serve")
    from protail.cli.service import Answerer, Limits, run_service

    answerer = Answerer(Model.load(model, device))
    limits = Limits(megabytes=max_megabytes)
    run_service(answerer, voice, host=host, port=port, limits=limits)


app = make_app(serve, "protail serve model --port 8000")
