"""Running the service: a port of this machine, until somebody stops it."""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
from contextlib import suppress
from typing import Any

from protail._messages import imported
from protail.cli.command import Voice
from protail.cli.service.answering import Answerer
from protail.cli.service.app import LOOPBACK, Limits, make_service
from protail.cli.service.thumbnails import Thumbnails

# Connections at the same time; further ones are told to come again later.
_MOST_CONNECTIONS = 256


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
