"""Ask a served model much, good and bad: `protail serve` under load.

    python benchmarks/serve_load.py MODEL [--photo PHOTO] [--requests 10000] [--seconds 20]

MODEL takes photos or feature rows. First 50 requests a second of one feature row each, sent on
time whether or not earlier ones were answered; then requests of every kind, most of them bad, as
fast as they are answered. Prints latencies, statuses and the memory of the server on the way, and
ends with 1 where an answer was not what it should be, the server crashed or its memory grew.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from PIL import Image

RATE, AT_ONCE = 50, 16
MOST_GROWTH = 100  # MiB, between a tenth of the requests and all of them
LARGE = 100_000_000
JSON, JPEG = {"Content-Type": "application/json"}, {"Content-Type": "image/jpeg"}


def start(model: Path) -> tuple[subprocess.Popen[str], str]:
    """Start the server on a free port; give its process and address."""
    words = ["-m", "protail", "serve", str(model), "--port", "0", "--json"]
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = ""
    while not said.rstrip().endswith("}"):
        line = process.stdout.readline()
        if not line:
            raise SystemExit("the server did not start")
        said += line
    return process, json.loads(said)["url"]


async def pieces() -> AsyncIterator[bytes]:
    """Send a body that does not say how large it is."""
    piece = b" " * 1_000_000
    for _ in range(LARGE // len(piece)):
        yield piece


def kinds(health: dict[str, Any], photo: bytes) -> dict[str, tuple[float, int, dict[str, Any]]]:
    """Give each kind of request: how often it comes, the status it should get, and what it is."""
    rng = np.random.default_rng(0)
    row = rng.random(health["n_features"]).round(4).tolist()
    bomb = io.BytesIO()
    Image.new("1", (30_000, 30_000)).save(bomb, "PNG")
    no_number = json.dumps({"features": row}).replace(str(row[0]), "NaN", 1).encode()
    given = 200 if health["takes_photos"] else 415
    whole, bad = (given, 422) if given == 200 else (415, 415)
    return {
        "features": (30, 200, {"json": {"features": row}}),
        "100 rows": (2, 200, {"json": {"features": [row] * 100}}),
        "photo": (6, whole, {"files": {"photo": photo}}),
        "truncated photo": (12, bad, {"files": {"photo": photo[: len(photo) // 2]}}),
        "a cut head": (6, bad, {"content": photo[:200], "headers": JPEG}),
        "text named .jpg": (8, bad, {"files": {"photo": ("a.jpg", b"I am no photo.")}}),
        "decompression bomb": (
            8,
            413 if given == 200 else 415,
            {"files": {"photo": bomb.getvalue()}},
        ),
        "wrong type": (8, 415, {"content": b"<a/>", "headers": {"Content-Type": "text/xml"}}),
        "no JSON": (6, 422, {"content": b'{"features": [', "headers": JSON}),
        "deep JSON": (3, 422, {"content": b"[" * 50_000, "headers": JSON}),
        "wrong width": (5, 422, {"json": {"features": [1.0, 2.0]}}),
        "NaN": (4, 422, {"content": no_number, "headers": JSON}),
        "broken form": (
            4,
            400,
            {"content": b"x", "headers": {"Content-Type": "multipart/form-data; boundary=b"}},
        ),
        "100 MB": (0.1, 413, {"content": b" " * LARGE, "headers": JSON}),
        "100 MB, size unsaid": (0.1, 413, {"content": pieces, "headers": JSON}),
    }


async def steadily(client: httpx.AsyncClient, body: dict[str, Any], seconds: float) -> list[float]:
    """Send requests on time; give how long each answer took."""

    async def one(at: float) -> float:
        await asyncio.sleep(max(0.0, at - time.perf_counter()))
        answer = await client.post("/predict", **body)
        answer.raise_for_status()
        return time.perf_counter() - at

    begin = time.perf_counter() + 0.5
    return await asyncio.gather(*(one(begin + n / RATE) for n in range(int(RATE * seconds))))


async def mixed(
    client: httpx.AsyncClient, every: dict[str, Any], n: int, server: psutil.Process
) -> tuple[Counter[str], list[float]]:
    """Send requests of all kinds; give how often an answer was wrong, and the memory on the way."""
    names, weights = list(every), np.array([kind[0] for kind in every.values()])
    order = np.random.default_rng(1).choice(len(names), n, p=weights / weights.sum())
    wrong: Counter[str] = Counter()
    memory: list[float] = []
    todo = iter(range(n))

    async def worker() -> None:
        for number in todo:
            name = names[order[number]]
            _, expected, body = every[name]
            if callable(body.get("content")):
                body = {**body, "content": body["content"]()}
            try:
                status = (await client.post("/predict", **body)).status_code
            except httpx.HTTPError as error:
                status = type(error).__name__
            if status != expected:
                wrong[f"{name}: {status}, expected {expected}"] += 1
            if number % (n // 20) == n // 20 - 1:
                memory.append(server.memory_info().rss / 2**20)

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    return wrong, memory


async def run(url: str, process: subprocess.Popen[str], chosen: argparse.Namespace) -> bool:
    """Do both; say whether all was well."""
    server = psutil.Process(process.pid)
    limits = httpx.Limits(max_connections=64)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        health = (await client.get("/healthz")).json()
        noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        made = io.BytesIO()
        Image.fromarray(noise).resize((500, 400)).save(made, "JPEG")
        photo = chosen.photo.read_bytes() if chosen.photo else made.getvalue()
        every = kinds(health, photo)
        took = np.array(await steadily(client, every["features"][2], chosen.seconds)) * 1000
        shown = ", ".join(f"{p} % in {np.percentile(took, p):.0f} ms" for p in (50, 95, 99, 100))
        print(f"{RATE} requests a second of features for {chosen.seconds:g} s: {shown}", flush=True)
        begin = time.perf_counter()
        wrong, memory = await mixed(client, every, chosen.requests, server)
        seconds = time.perf_counter() - begin
        still = (await client.get("/healthz")).status_code == 200
    growth = memory[-1] - memory[1]
    print(f"{chosen.requests:,} mixed requests in {seconds:.0f} s; wrong: {dict(wrong) or 'none'}")
    print(f"memory of the server, MiB: {', '.join(f'{m:.0f}' for m in memory)}")
    slow = np.percentile(took, 95) > 1000
    return still and not wrong and growth < MOST_GROWTH and not slow


def main() -> None:
    """Start the server, load it, stop it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--photo", type=Path, help="a photo to send; else a made-up one")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=20)
    chosen = parser.parse_args()
    process, url = start(chosen.model)
    try:
        well = asyncio.run(run(url, process, chosen))
        crashed = process.poll() is not None
    finally:
        process.terminate()
        process.wait(20)
    sys.exit(0 if well and not crashed else 1)


if __name__ == "__main__":
    main()
