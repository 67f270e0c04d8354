"""The service itself: what it answers under which address, what it refuses, and its port."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import math
import socket
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import protail
from protail._messages import counted, imported
from protail.cli.command import Voice
from protail.cli.service.answering import MOST_PIXELS, Answerer, RefusedError
from protail.cli.service.thumbnails import Thumbnails

if TYPE_CHECKING:
    from fastapi import FastAPI, Request

PAGES = Path(__file__).parent
LOOPBACK = ("127.0.0.1", "::1", "localhost")
# Of a number in JSON, with the comma and a space behind it.
_DIGITS = 27
# Pages load nothing from anywhere else.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}
_FORM = "multipart/form-data"
# Connections at the same time; further ones are told to come again later.
_MOST_CONNECTIONS = 256


@dataclass(frozen=True)
class Limits:
    """What one request may ask for.

    Attributes
    ----------
    megabytes : float
        Of a body.
    pixels : int
        Of a photo.
    seconds, idle_seconds : float
        To send a body in, and its next piece.
    at_once : int
        Bodies held in memory; further requests wait.
    computing : int
        Answers computed at the same time.
    rows : int
        Feature rows in one request.

    Examples
    --------
    >>> from protail.cli.service import Limits
    >>> Limits().megabytes
    20
    """

    megabytes: float = 20
    pixels: int = MOST_PIXELS
    seconds: float = 30
    idle_seconds: float = 5
    at_once: int = 16
    computing: int = 2
    rows: int = 1000

    @property
    def bytes(self) -> int:
        """Of a body, in bytes."""
        return int(self.megabytes * 1_000_000)

    def of_json(self, n_features: int) -> Limits:
        """Give the limits of rows so wide; read into memory, JSON takes many times its bytes."""
        most = self.rows * (n_features + 1) * _DIGITS / 1_000_000
        return replace(self, megabytes=min(self.megabytes, math.ceil(most)))


def make_service(
    answerer: Answerer,
    *,
    limits: Limits = Limits(),
    examples: Thumbnails | None = None,
    hosts: tuple[str, ...] | None = None,
) -> FastAPI:
    """Make the service of a model.

    Parameters
    ----------
    answerer : Answerer
        Who knows the answers.
    limits : Limits
        What is refused.
    examples : Thumbnails, optional
        Training photos; with them, even if there are none, the page of the demo is at ``/``.
    hosts : tuple of str, optional
        The names under which requests may come; by default any.

    Returns
    -------
    fastapi.FastAPI
        An ASGI application, for uvicorn or any other server.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from protail import PrototypeClassifier
    >>> from protail.cli.service import Answerer, make_service
    >>> from protail.cli.sources import Model
    >>> folder = Path(tempfile.mkdtemp())
    >>> PrototypeClassifier().fit(np.eye(4), ["ant", "ant", "bee", "bee"]).save(folder)
    >>> make_service(Answerer(Model.load(folder))).title
    'protail'
    """
    fastapi = imported("fastapi", "serving a model", "fastapi", "serve")
    imported("python_multipart", "serving a model", "python-multipart", "serve")
    from anyio import CapacityLimiter, to_thread
    from fastapi.responses import HTMLResponse, JSONResponse, Response
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import ClientDisconnect

    service: FastAPI = fastapi.FastAPI(
        title="protail",
        version=protail.__version__,
        description=_description(answerer),
        docs_url=None,  # its page would be fetched from somewhere else
        redoc_url=None,
    )
    if hosts is not None:
        service.add_middleware(TrustedHostMiddleware, allowed_hosts=[*hosts])
    bodies, threads = asyncio.Semaphore(limits.at_once), CapacityLimiter(limits.computing)
    model = answerer.model

    async def refuse(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, getattr(error, "status", 400))

    async def predict(request: Request, top_k: int = fastapi.Query(5, ge=1, le=1000)) -> Any:
        """Classify a photo, or rows of features."""
        try:
            async with bodies:
                kind, data = await _body(request, limits, answerer.n_features)
                about = about_rows if kind == "json" else answerer.about_photo
                found = await to_thread.run_sync(about, data, top_k, limiter=threads)
        except ClientDisconnect as error:  # nobody is left to read this
            raise RefusedError(400, "the body ended too early; expected all of it.") from error
        except asyncio.CancelledError as error:
            raise RefusedError(503, "the service is being stopped. Ask again later.") from error
        return JSONResponse({"predictions": found if kind == "json" else [found]})

    def about_rows(data: bytes, k: int) -> Any:
        rows = answerer.rows_in(data)
        if len(rows) > limits.rows:
            raise RefusedError(
                413, f"there are {len(rows):,} rows; expected at most {limits.rows:,}. Send fewer."
            )
        return answerer.about_rows(rows, k)

    async def healthz() -> dict[str, Any]:
        """Say that the service is there, and what it takes."""
        return {
            "status": "ok",
            "classes": len(model.classes),
            "takes_photos": answerer.takes_photos,
            "n_features": answerer.n_features,
            "max_bytes": limits.bytes,
        }

    async def docs() -> HTMLResponse:
        return HTMLResponse((PAGES / "docs.html").read_text("utf-8"), headers=_HEADERS)

    service.add_exception_handler(RefusedError, refuse)
    predict.__annotations__["request"] = fastapi.Request  # fastapi reads it; it is imported late
    service.post(
        "/predict", openapi_extra=_bodies(answerer), responses=_REFUSALS, response_model=None
    )(predict)
    service.get("/healthz")(healthz)
    service.get("/docs", include_in_schema=False, response_model=None)(docs)
    if examples is None:
        return service

    async def page() -> HTMLResponse:
        return HTMLResponse((PAGES / "demo.html").read_text("utf-8"), headers=_HEADERS)

    async def classes() -> list[dict[str, Any]]:
        """List the classes, their training examples, and how many of these can be shown."""
        counts = [None] * len(model.classes)
        if model.head.class_counts_ is not None:
            counts = model.head.class_counts_.tolist()
        names = model.classes.tolist()
        return [
            {"label": name, "count": counts[code], "examples": examples.number(code)}
            for code, name in enumerate(names)
        ]

    async def example(code: int, number: int) -> Response:
        """Give a small version of a training photo."""
        found = await to_thread.run_sync(examples.thumbnail, code, number, limiter=threads)
        if found is None:
            raise RefusedError(404, "there is no such training photo.")
        age = {"Cache-Control": "max-age=3600"}
        return Response(found, media_type="image/jpeg", headers=_HEADERS | age)

    service.get("/", include_in_schema=False, response_model=None)(page)
    service.get("/classes")(classes)
    service.get("/examples/{code}/{number}", response_class=Response, response_model=None)(example)
    return service


async def _body(request: Request, limits: Limits, n_features: int) -> tuple[str, bytes]:
    """Read a body that is neither too large nor too slow; say whether it is JSON or a photo."""
    from starlette.formparsers import MultiPartException, MultiPartParser

    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and kind != _FORM and not kind.startswith("image/"):
        raise RefusedError(
            415,
            f"the body is {kind or 'of no type'}; expected application/json, {_FORM} with the "
            "field 'photo', or image/jpeg, image/png and the like.",
        )
    try:
        async with asyncio.timeout(limits.seconds):
            if kind == "application/json":
                stream = _limited(request, limits.of_json(n_features))
                return "json", b"".join([part async for part in stream])
            if kind != _FORM:
                return "photo", b"".join([part async for part in _limited(request, limits)])
            stream = _limited(request, limits)
            parser = MultiPartParser(request.headers, stream, max_files=1, max_fields=4)
            form = await parser.parse()
            try:
                photo = form.get("photo")
                if photo is None or isinstance(photo, str):
                    raise RefusedError(422, "the form has no file 'photo'; expected one.")
                return "photo", await photo.read()
            finally:
                await form.close()
    except TimeoutError:
        raise RefusedError(
            408,
            f"the body took longer than {limits.seconds:g} s to come, or {limits.idle_seconds:g} s "
            "passed without a piece of it; expected it sooner.",
        ) from None
    except (MultiPartException, KeyError, UnicodeError) as error:
        raise RefusedError(400, "the form cannot be read; expected a whole one.") from error


async def _limited(request: Request, limits: Limits) -> AsyncGenerator[bytes, None]:
    """Hand on the pieces of a body until it is too large: the rest is never held."""
    said = request.headers.get("content-length", "")
    n_bytes = int(said) if said.isascii() and said.isdigit() else 0
    if n_bytes <= limits.bytes:
        n_bytes = 0
        pieces = aiter(request.stream())
        while True:
            async with asyncio.timeout(limits.idle_seconds):
                part = await anext(pieces, None)
            if part is None:
                return
            n_bytes += len(part)
            if n_bytes > limits.bytes:
                break
            yield part
    raise RefusedError(
        413, f"the body is too large; expected at most {limits.megabytes:g} MB. Send a smaller one."
    )


def _description(answerer: Answerer) -> str:
    classes = counted(len(answerer.model.classes), "class", "classes")
    takes = f"feature rows of {counted(answerer.n_features, 'number')}"
    if answerer.takes_photos:
        takes = f"photos, or {takes}"
    return f"A model of {classes} that takes {takes}."


_REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"description": "The form cannot be read."},
    408: {"description": "The body came too slowly."},
    413: {"description": "The body is too large, or the photo has too many pixels."},
    415: {"description": "Neither a photo nor JSON, or a photo where none is taken."},
    422: {"description": "The photo or the numbers cannot be read."},
}


def _bodies(answerer: Answerer) -> dict[str, Any]:
    """Describe in OpenAPI's words what /predict takes and gives."""
    row = {"type": "array", "items": {"type": "number"}}
    features = {"oneOf": [row, {"type": "array", "items": row}]}
    number = {"type": ["number", "null"]}
    label = {"oneOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}]}
    one = {"code": {"type": "integer"}, "label": label, "probability": number, "distance": number}
    name = {"oneOf": [*label["oneOf"], {"type": "null"}]} if answerer.model.rejects else label
    prediction = {
        "label": name,
        "probability": number,
        "novelty": number,
        **({"rejected": {"type": "boolean"}} if answerer.model.rejects else {}),
        "top": {"type": "array", "items": {"type": "object", "properties": one}},
    }
    content: dict[str, Any] = {
        "application/json": {"schema": _object({"features": features}, ["features"])}
    }
    if answerer.takes_photos:
        photo = {"type": "string", "format": "binary"}
        content[_FORM] = {"schema": _object({"photo": photo}, ["photo"])}
        content["image/*"] = {"schema": photo}
    answers = {"predictions": {"type": "array", "items": _object(prediction)}}
    given = {"application/json": {"schema": _object(answers)}}
    return {
        "requestBody": {"required": True, "content": content},
        "responses": {"200": {"description": "The likeliest classes.", "content": given}},
    }


def _object(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        **({"required": required} if required else {}),
    }


def run_service(
    answerer: Answerer,
    voice: Voice,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: Limits,
    examples: Thumbnails | None = None,
) -> None:
    """Serve a model until the process is stopped.

    Parameters
    ----------
    answerer : Answerer
        Who knows the answers.
    voice : Voice
        Who says the address, once requests are taken.
    host, port : str, int
        Where to listen; port 0 is a free one.
    limits : Limits
        What is refused.
    examples : Thumbnails, optional
        For the demo.
    """
    uvicorn: Any = imported("uvicorn", "serving a model", "uvicorn", "serve")
    is_loopback = _is_loopback(host)
    service = make_service(
        answerer,
        limits=limits,
        examples=examples,
        # So that no page of somebody else's can reach it under a name of its own.
        hosts=(*LOOPBACK, "[::1]", host) if is_loopback else None,
    )
    config = uvicorn.Config(
        service,
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=5,
    )
    # Of every broken form it would say so here; whoever sent it is told.
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)
    listening = _listening(host, port)
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{listening.getsockname()[1]}"
    what = f"{answerer.model.folder} ({len(answerer.model.classes):,} classes)"
    where = f"{url}" if examples is not None else f"{url} (POST /predict, GET /healthz, /docs)"
    open_to_all = "" if is_loopback else "; every machine that reaches this one can ask"
    with listening, suppress(KeyboardInterrupt):  # that is how a service ends
        voice.say(f"Serving {what} on {where}{open_to_all}. Ctrl-C stops it.")
        voice.finish({"url": url, "model": str(answerer.model.folder)})
        uvicorn.Server(config).run(sockets=[listening])
    voice.say("Stopped.")


def _listening(host: str, port: int) -> socket.socket:
    """Take the port now: what is wrong with it is then told in words."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        reason = (
            "is taken by another program" if error.errno == errno.EADDRINUSE else error.strerror
        )
        raise ValueError(
            f"cannot listen on {host}, port {port}: {reason}; expected a free port of this "
            "machine. Choose another --port, or 0 for any."
        ) from error
    # Without it the end of an answer waits 40 ms for the other side to confirm its beginning.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _is_loopback(host: str) -> bool:
    if host in LOOPBACK:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
