"""``protail serve`` and ``protail demo``: a live server, asked well and badly, and in a browser."""

import io
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from protail import Network, PrototypeClassifier
from protail.data.augment import InputSpec
from protail.models.backbones import make_backbone
from protail.models.heads import make_head
from reference.patience import PATIENCE

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
NAMES = ["<script>alert(1)</script>", "ant", "bee"]
JSON = {"Content-Type": "application/json"}
JPEG = {"Content-Type": "image/jpeg"}
CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a model of photos, a model of rows, and class folders of training photos."""
    from PIL import Image

    root = tmp_path_factory.mktemp("serve")
    rng = np.random.default_rng(0)
    folders = ["script", "ant", "bee"]  # a slash is in no folder's name
    for code, name in enumerate(folders):
        (root / "photos" / name).mkdir(parents=True)
        for number in range(4):
            pixels = rng.integers(0, 60, (40, 48, 3), dtype=np.uint8)
            pixels[:, :, code] += 180
            Image.fromarray(pixels).save(root / "photos" / name / f"{number}.jpg")
    backbone = make_backbone("resnet32")
    bare = Network(PrototypeClassifier().fit(np.eye(4), [0, 0, 1, 1]), backbone=backbone)
    bare.inputs = inputs = InputSpec(size=16, crop=1.0)
    files = sorted((root / "photos").rglob("*.jpg"))
    names = dict(zip(folders, NAMES, strict=True))
    rows, labels = bare.features(files), [names[file.parent.name] for file in files]
    classifier = PrototypeClassifier(random_state=0).fit(rows, labels)
    Network(classifier, backbone=backbone, inputs=inputs).save(root / "model")
    classifier.save(root / "rows")
    return root


@pytest.fixture(scope="module")
def server(place):
    """The demo on a free port, which is the service with a page; its first and last line."""
    words = ["demo", place / "model", "--photos", place / "photos", "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "protail", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    bare = f"Classes without a photo in {place / 'photos'}, shown without: 1 ({NAMES[0]})."
    assert process.stderr.readline().startswith(bare)
    line = process.stderr.readline()
    start = f"Serving {place / 'model'} (3 classes) on "
    assert line.startswith(f"{start}http://127.0.0.1:")
    assert line.endswith(". Ctrl-C stops it.\n")
    yield line.removeprefix(start).removesuffix(". Ctrl-C stops it.\n")
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20) == ("", "Stopped.\n")
    assert process.returncode == 0


@pytest.fixture
def client(server):
    with httpx.Client(base_url=server, timeout=60) as made:
        yield made


@pytest.fixture(scope="module")
def photo(place):
    return (place / "photos" / "bee" / "0.jpg").read_bytes()


def test_a_photo_in_every_form_and_its_features(client, place, photo):
    network = Network.load(place / "model")
    file = place / "photos" / "bee" / "0.jpg"
    (found,) = client.post("/predict?top_k=2", files={"photo": photo}).json()["predictions"]
    labels, probabilities = network.top_k(file, 2)
    assert [each["label"] for each in found["top"]] == labels[0].tolist()
    given = [each["probability"] for each in found["top"]]
    np.testing.assert_allclose(given, probabilities[0], atol=1e-6)
    assert found["label"] == "bee"
    novelty = network.head.novelty_score(network.features(file))[0]
    assert found["novelty"] == pytest.approx(novelty, rel=1e-5)
    raw = client.post("/predict?top_k=2", content=photo, headers=JPEG).json()["predictions"]
    rows = network.features([file, file]).tolist()
    both = client.post("/predict?top_k=2", json={"features": rows}).json()["predictions"]
    assert raw == [found]
    assert [each["label"] for each in both] == ["bee", "bee"]
    assert both[1]["novelty"] == pytest.approx(novelty, rel=1e-5)


def bomb():
    from PIL import Image

    made = io.BytesIO()
    Image.new("1", (9000, 9000)).save(made, "PNG")
    return made.getvalue()


ROW = ",".join("1" * 64)
BAD = {
    "truncated": (422, lambda photo: {"files": {"photo": photo[: len(photo) // 2]}}),
    "text": (422, lambda photo: {"files": {"photo": ("a.jpg", b"no photo")}}),
    "nothing": (422, lambda photo: {"content": b"", "headers": JPEG}),
    "bomb": (413, lambda photo: {"files": {"photo": bomb()}}),
    "type": (415, lambda photo: {"content": b"<a/>", "headers": {"Content-Type": "text/xml"}}),
    "no type": (415, lambda photo: {"content": b"1"}),
    "JSON": (422, lambda photo: {"content": b"{", "headers": JSON}),
    "deep": (422, lambda photo: {"content": b"[" * 100_000, "headers": JSON}),
    "list": (422, lambda photo: {"content": b"[1]", "headers": JSON}),
    "ragged": (422, lambda photo: {"json": {"features": [[1, 2], [1]]}}),
    "width": (422, lambda photo: {"json": {"features": [1, 2]}}),
    "words": (422, lambda photo: {"json": {"features": ["1"] * 64}}),
    "NaN": (
        422,
        lambda photo: {
            "content": b'{"features": [' + ROW.replace("1", "NaN", 1).encode() + b"]}",
            "headers": JSON,
        },
    ),
    "field": (422, lambda photo: {"files": {"other": photo}}),
    "form": (
        400,
        lambda photo: {
            "content": b"x",
            "headers": {"Content-Type": "multipart/form-data; boundary=b"},
        },
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_requests_are_told(client, photo, name):
    status, make = BAD[name]
    answer = client.post("/predict", **make(photo))
    assert answer.status_code == status
    assert "expected" in answer.json()["detail"]


@pytest.mark.parametrize("says_its_size", [True, False])
def test_100_megabytes_are_refused_and_not_held(client, says_its_size):
    piece = b" " * 1_000_000
    pieces = (piece for _ in range(100))
    body = piece * 100 if says_its_size else pieces
    answer = client.post("/predict", content=body, headers=JSON)
    assert answer.status_code == 413
    assert "at most 2 MB" in answer.json()["detail"]
    assert says_its_size or len(list(pieces)) < 100  # it need not even be sent


def test_who_hangs_up_leaves_no_trace(client):
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999\r\nContent-Type: "
    form = b"multipart/form-data; boundary=b\r\n\r\n--b\r\n"
    for rest in (b"application/json\r\n\r\n[", form):
        with socket.create_connection((client.base_url.host, client.base_url.port)) as connection:
            connection.sendall(head + rest)
    assert client.get("/healthz").status_code == 200  # the last line of the server is looked at


def test_what_else_there_is(client):
    health = client.get("/healthz").json()
    assert (health["status"], health["classes"], health["n_features"]) == ("ok", 3, 64)
    api = client.get("/openapi.json").json()
    assert {"/predict", "/healthz"} <= set(api["paths"])
    assert set(api["paths"]["/predict"]["post"]["requestBody"]["content"]) == {
        "application/json",
        "multipart/form-data",
        "image/*",
    }
    assert client.get("/healthz", headers={"Host": "evil.example"}).status_code == 400
    assert client.get("/predict").status_code == 405
    assert client.post("/predict?top_k=0", json={"features": [1] * 64}).status_code == 422
    classes = client.get("/classes").json()
    assert [each["examples"] for each in classes] == [0, 4, 4]
    small = client.get("/examples/1/0")
    assert small.headers["content-type"] == "image/jpeg"
    assert client.get("/examples/1/4").status_code == 404
    assert client.get("/examples/../model").status_code == 404


def test_a_model_of_rows_takes_no_photos(place, photo):
    from starlette.testclient import TestClient

    from protail.cli.service import Answerer, Limits, make_service
    from protail.cli.sources import Model

    answerer = Answerer(Model.load(place / "rows"))
    client = TestClient(make_service(answerer, limits=Limits(megabytes=0.001)))
    assert client.post("/predict", content=photo[:900], headers=JPEG).status_code == 415
    assert client.post("/predict", json={"features": [1.0] * 64}).status_code == 200
    assert client.post("/predict", json={"features": [1.25] * 640}).status_code == 413
    client = TestClient(make_service(answerer, limits=Limits(rows=2)))
    assert client.post("/predict", json={"features": [[0.5] * 64] * 2}).status_code == 200
    told = client.post("/predict", json={"features": [[0.5] * 64] * 3}).json()["detail"]
    assert told == "there are 3 rows; expected at most 2. Send fewer."
    assert client.get("/").status_code == 404


def test_a_rejected_row_has_no_label(tmp_path):
    from starlette.testclient import TestClient

    from protail.cli.service import Answerer, make_service
    from protail.cli.sources import Model

    rows = np.random.default_rng(0).normal(size=(60, 3)) + 6 * np.repeat(np.eye(3), 20, axis=0)
    classifier = PrototypeClassifier(reject=0.1).fit(rows, np.repeat(NAMES, 20))
    classifier.save(tmp_path / "careful")
    client = TestClient(make_service(Answerer(Model.load(tmp_path / "careful"))))
    asked = np.concatenate([rows[::7], -9 * rows[:3]])
    found = client.post("/predict", json={"features": asked.tolist()}).json()["predictions"]
    expected = classifier.predict(asked)
    assert [each["label"] for each in found] == expected.tolist()
    assert [each["rejected"] for each in found] == [label is None for label in expected]
    assert 0 < sum(label is None for label in expected) < len(expected)
    assert found[-1]["top"][0]["label"] in NAMES


def test_a_trained_head_is_served_too(tmp_path):
    from starlette.testclient import TestClient

    from protail.cli.service import Answerer, make_service
    from protail.cli.sources import Model

    for name, knows_distances in (("prototype", True), ("linear", False)):
        network = Network(make_head(name, 3, 4), NAMES, device="cpu")
        network.save(tmp_path / name)
        client = TestClient(make_service(Answerer(Model.load(tmp_path / name))))
        answer = client.post("/predict", json={"features": [1, 2, 3, 4]}).json()
        ((found,), expected) = answer["predictions"], network.predict_proba([[1.0, 2, 3, 4]])[0]
        np.testing.assert_allclose(
            [each["probability"] for each in found["top"]], sorted(expected)[::-1]
        )
        assert (found["novelty"] is not None) == knows_distances
    client = TestClient(make_service(Answerer(Model.load(tmp_path / "prototype"))))
    far = client.post("/predict", json={"features": [3e38, 1, -3e38, 0]})
    assert (far.status_code, "too large" in far.json()["detail"]) == (422, True)


def test_bad_words(protail, place):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = protail("serve", place / "rows", "--port", port)
    assert f"port {port}: is taken by another program" in ended.last_line
    assert "Choose another --port" in ended.last_line
    assert "takes feature rows" in protail("demo", place / "rows").last_line
    assert "there is no such folder" in protail("serve", "nowhere").last_line
    ended = protail("demo", place / "model", "--photos", place / "rows")
    assert "none of the model's classes" in ended.last_line


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no chromium here")
    with api.sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_the_page_in_a_browser(browser, server, place, scheme, width):
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.set_default_timeout(1000 * PATIENCE)
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(server)
    page.locator("#about:not(:empty)").wait_for()  # a function to wait for is against the CSP
    assert page.inner_text("#about") == "3 classes; the nearest prototype decides"
    page.set_input_files("#file", place / "photos" / "bee" / "0.jpg")
    page.wait_for_selector("#answers .percent")
    assert page.locator("#answers .name").first.inner_text() == "bee"
    assert set(page.locator("#answers .name").all_inner_texts()) == set(NAMES)
    assert page.locator("#answers li").first.locator("img").count() == 4
    page.wait_for_load_state("networkidle")
    first = page.locator("#answers li").first.locator("img").first
    assert first.evaluate("image => image.complete && image.naturalWidth") == 48
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.goto(f"{server}/docs")
    page.wait_for_selector("h2")
    assert "POST /predict" in page.locator("h2").all_inner_texts()
    assert said == []
    assert [url for url in asked if not url.startswith((server, "blob:"))] == []
    page.goto(server)
    broken = {"name": "a.jpg", "mimeType": "image/jpeg", "buffer": b"no photo"}
    page.set_input_files("#file", broken)
    page.wait_for_selector("#status.bad")
    assert page.inner_text("#status").startswith("the photo cannot be read")
    page.close()


def test_the_example_of_a_client(server, place, tmp_path):
    script = Path(__file__).parents[2] / "examples" / "service_client.py"
    network, file = Network.load(place / "model"), place / "photos" / "bee" / "0.jpg"
    np.savetxt(tmp_path / "rows.csv", network.features([file, file]), delimiter=",")
    (tmp_path / "text.jpg").write_text("no photo")
    words = [server, str(file), str(tmp_path / "rows.csv"), str(tmp_path / "text.jpg")]
    ended = subprocess.run(
        [sys.executable, script, *words], capture_output=True, text=True, check=False
    )
    first, photo, row, _, refused = ended.stdout.splitlines()
    assert (ended.returncode, first) == (1, f"3 classes at {server}")
    assert photo.startswith(f"{file}: bee ")
    assert row.startswith(f"{tmp_path / 'rows.csv'}, row 0: bee ")
    assert "the photo cannot be read" in refused
