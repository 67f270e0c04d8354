"""``protail export``: a model as one file that runs without protail, compared before it is kept."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

import protail
from protail._messages import counted, imported, why
from protail.cli import options as opt
from protail.cli.command import Voice, command, make_app
from protail.cli.sources import check_model_folder, check_there

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

    from protail import Network

Array = NDArray[Any]
Run = Callable[[Array], Array]

# Largest difference of a probability, and how many inputs are compared.
TOLERANCE = 1e-4
_COMPARED = 100
_AT_A_TIME = 10
_EXTRA_FILE = "protail.json"

Onnx = Annotated[
    Path | None, typer.Option("--onnx", metavar="FILE", help="Write for ONNX Runtime and others.")
]
Torch = Annotated[
    Path | None, typer.Option("--torch", metavar="FILE", help="Write for torch.export.load.")
]
Check = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="Photos or feature rows to compare on; else random ones."),
]


@command
def export(
    voice: Voice,
    model: opt.ModelFolder,
    onnx: Onnx = None,
    torch: Torch = None,
    check: Check = None,
    overwrite: opt.Overwrite = False,
) -> None:
    """Export a model as one file that needs no protail.

    Preprocessing constants, backbone and head are in one graph, labels and what the input has to
    be in its metadata. The file is kept only if it answers as the model does.
    """
    from protail._files import check_free

    chosen = [place for place in (onnx, torch) if place is not None]
    if not chosen:
        raise ValueError("nothing to write; expected --onnx FILE, --torch FILE or both.")
    if len(chosen) == 2 and chosen[0] == chosen[1]:
        raise ValueError(f"--onnx and --torch are both {onnx}; expected two files.")
    for wanted in chosen:
        check_free(wanted, overwrite=overwrite)
    check_there(model, expected="a model's folder")
    check_there(check, expected="photos or a feature file")
    check_model_folder(model)
    from protail import Network

    network = Network.load(model, device="cpu")
    if getattr(network.head, "prior", None) == "estimate":
        raise ValueError(
            f"{model} estimates the mix of classes from all rows of a call (--prior estimate), but "
            "an exported file answers each by itself; expected a fixed prior. Fit it with another "
            "--prior, such as uniform."
        )
    sample = Sample.of(network, check)
    written = []
    with ExitStack() as kept:  # of two files, both are there or none
        for place, write in ((onnx, write_onnx), (torch, write_torch)):
            if place is not None:
                written.append(kept.enter_context(_kept(network, sample, place, write, overwrite)))
    for each in written:
        voice.say(
            f"{each['file']}: {each['megabytes']} MB; on {counted(len(sample.inputs), 'input')} "
            f"({sample.origin}) probabilities differ from torch's by at most "
            f"{each['largest_difference']:.1e}, the likeliest class never."
        )
    expected = preprocessing(network)
    voice.say(f"Input: {expected['input']}, {expected['dtype']} {expected['shape']}.")
    voice.finish({"files": written, "compared": len(sample.inputs), "preprocessing": expected})


class Sample:
    """Inputs to compare on, and what the model says about them.

    Parameters
    ----------
    inputs : ndarray
        What the exported graph takes.
    probabilities : ndarray
        The model's own answers.
    origin : str
        Where they are from, in words.
    """

    def __init__(self, inputs: Array, probabilities: Array, origin: str) -> None:
        self.inputs, self.probabilities, self.origin = inputs, probabilities, origin

    @classmethod
    def of(cls, network: Network, place: Path | None = None, n: int = _COMPARED) -> Sample:
        """Take some photos or rows, or make random ones."""
        rng = np.random.default_rng(0)
        if network.backbone is not None and network.inputs is not None:
            if place is None:
                side = network.inputs.resized
                photos: Any = list(_coarse_noise(rng, n // 4, side))
            else:
                from protail.network import photo_files

                photos = photo_files(place)[:n]
            found: tuple[Array, Array] = network.pixels(photos), network.predict_proba(photos)
        else:
            if place is None:
                rows = rng.normal(size=(n, network.n_features)).astype(np.float32)
            else:
                rows = _rows_in(network, place)
            rows = rows[:n].astype(np.float32)
            found = rows, network.predict_proba(rows)
        return cls(*found, "random" if place is None else str(place))

    def difference(self, run: Run, place: Path) -> float:
        """Compare with what the exported file says; raise where it is not the same."""
        parts = range(0, len(self.inputs), _AT_A_TIME)
        given = np.concatenate([run(self.inputs[at : at + _AT_A_TIME]) for at in parts])
        largest = float(np.abs(given - self.probabilities).max())
        top = np.sort(self.probabilities, axis=1)[:, -2:]
        clear = top[:, 1] - top[:, 0] > TOLERANCE  # of equal ones either may come first
        others = int((given.argmax(1) != self.probabilities.argmax(1))[clear].sum())
        if not largest <= TOLERANCE or others:
            raise ValueError(
                f"{place} is not written: on {counted(len(given), 'input')} its probabilities "
                f"differ from the model's by up to {largest:.2g}, the likeliest class of "
                f"{others}; expected at most {TOLERANCE:g} and 0. Use the model with protail, or "
                "another backbone."
            )
        return largest


def preprocessing(network: Network) -> dict[str, Any]:
    """Say what the exported graph takes, and how a photo becomes that.

    Parameters
    ----------
    network : Network
        The model.

    Returns
    -------
    dict
        Plain values; they stand in the metadata of exported files.

    Examples
    --------
    >>> import numpy as np
    >>> from protail import Network, PrototypeClassifier
    >>> from protail.cli.export import preprocessing
    >>> preprocessing(Network(PrototypeClassifier().fit(np.eye(4), [0, 0, 1, 1])))
    {'input': 'features', 'dtype': 'float32', 'shape': ['batch', 4]}
    """
    inputs = network.inputs
    if network.backbone is None or inputs is None:
        return {"input": "features", "dtype": "float32", "shape": ["batch", network.n_features]}
    return {
        "input": "pixels",
        "dtype": "uint8",
        "shape": ["batch", inputs.size, inputs.size, 3],
        "channels": "RGB",
        "resize": {
            "to": [inputs.resized] * 2 if inputs.squash else inputs.resized,
            "side": "both" if inputs.squash else "shorter",
            "interpolation": inputs.interpolation,
        },
        "crop": {"to": inputs.size, "where": "centre"},
        "in_the_graph": {"divide_by": 255, "mean": [*inputs.mean], "std": [*inputs.std]},
    }


def write_onnx(network: Network, sample: Sample, file: Path) -> Run:
    """Write a network for ONNX Runtime; give what runs the file.

    Parameters
    ----------
    network : Network
        The model.
    sample : Sample
        Its first inputs are the example that the graph is traced with.
    file : Path
        Where to write.

    Returns
    -------
    callable
        Inputs to probabilities, by ONNX Runtime.
    """
    about = "exporting to ONNX", "onnx, onnxscript and onnxruntime", "export"
    imported("onnx", *about)
    imported("onnxscript", *about)
    runtime = imported("onnxruntime", *about)
    import torch

    name = preprocessing(network)["input"]
    with _quiet():
        program: Any = torch.onnx.export(
            network.to_module(),
            (_example(sample),),
            dynamo=True,
            dynamic_shapes=_dynamic_batch(),
            input_names=[name],
            output_names=["probabilities"],
            verbose=False,
        )
        program.model.metadata_props.update(_metadata(network))
        program.save(file)
    # The answer of another program, not what torch believes to have written.
    session = runtime.InferenceSession(file.read_bytes(), providers=["CPUExecutionProvider"])
    return lambda inputs: np.asarray(session.run(None, {name: inputs})[0])


def write_torch(network: Network, sample: Sample, file: Path) -> Run:
    """Write a network for ``torch.export.load``; give what runs the file.

    Parameters
    ----------
    network : Network
        The model.
    sample : Sample
        Its first inputs are the example that the graph is traced with.
    file : Path
        Where to write.

    Returns
    -------
    callable
        Inputs to probabilities, by the program as it was read again.
    """
    import torch

    with _quiet():
        program = torch.export.export(
            network.to_module(), (_example(sample),), dynamic_shapes=_dynamic_batch()
        )
        extra = {_EXTRA_FILE: json.dumps(_metadata(network))}
        # By way of the memory: torch's own writer ends the process where the disk is full.
        written = io.BytesIO()
        torch.export.save(program, written, extra_files=extra)
        file.write_bytes(written.getvalue())
        written.seek(0)
        loaded: nn.Module = torch.export.load(written).module()

    def run(inputs: Array) -> Array:
        with torch.no_grad():
            return np.asarray(loaded(torch.from_numpy(inputs)))

    return run


@contextmanager
def _kept(
    network: Network,
    sample: Sample,
    place: Path,
    write: Callable[[Network, Sample, Path], Run],
    overwrite: bool,
) -> Iterator[dict[str, Any]]:
    """Write a file that takes its place when the block ends well, if it answers as it should."""
    from protail._files import new_file

    with new_file(place, overwrite=overwrite) as temporary:
        try:
            run = write(network, sample, temporary)
        except (ImportError, OSError):
            raise
        except Exception as error:  # each operator that cannot be exported has its own type
            raise ValueError(
                f"{place} is not written: this model cannot be exported ({why(error)}). Use it "
                "with protail, or report this with the output of the same command and --debug."
            ) from error
        difference = sample.difference(run, place)
        size = round(temporary.stat().st_size / 1e6, 1)
        yield {"file": str(place), "megabytes": size, "largest_difference": difference}


def _rows_in(network: Network, place: Path) -> Array:
    from protail.data.tables import open_features

    file = open_features(place, need_labels=False)
    names = getattr(network.head, "feature_names_in_", None)
    if names is not None and file.columns is not None:  # its own, whatever else the file holds
        file = open_features(place, need_labels=False, columns=[*map(str, names)])
    if file.width != network.n_features:
        raise ValueError(
            f"{place} has rows of {counted(file.width, 'number')}; expected rows of "
            f"{network.n_features}, which the model takes. Give features of the same backbone."
        )
    return np.asarray(next(iter(file.blocks())))


def _metadata(network: Network) -> dict[str, str]:
    """Give what stands beside the graph, each value as JSON."""
    found = {
        "labels": network.classes_.tolist(),
        "preprocessing": preprocessing(network),
        "about": network.about,
        "protail_version": protail.__version__,
    }
    return {name: json.dumps(value) for name, value in found.items()}


def _example(sample: Sample) -> Tensor:
    import torch

    # A batch of one would be taken for one that is always of one.
    return torch.from_numpy(np.resize(sample.inputs, (2, *sample.inputs.shape[1:])))


def _dynamic_batch() -> Any:
    import torch

    return ({0: torch.export.Dim("batch")},)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the exporters say to their developers from people."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _coarse_noise(rng: np.random.Generator, n: int, side: int) -> Array:
    """Make photos of random patches: plain noise looks the same everywhere."""
    patches = rng.integers(0, 256, (n, -(-side // 16), -(-side // 16), 3), dtype=np.uint8)
    found: Array = patches.repeat(16, axis=1).repeat(16, axis=2)[:, :side, :side]
    return found


app = make_app(export, "protail export model --onnx model.onnx --check photos/test")
