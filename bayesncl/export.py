"""Models as ONNX files, compared with torch before they are put in place.

A run: images float [N, 3, S, S] in [0, 1] to h and codes. Codes of photos: the same through their encoder where it is
a torch module. Codes of arrays, or the head alone: embeddings [N, F] to codes. The metadata says how photos are
prepared, so that the file of a run serves as an encoder again.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import tempfile
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .codes import ReadableCodes
from .codes_folder import PhotoCodes
from .encoders import METADATA, View, pool, view_of
from .errors import InputError, import_extra, or_refuse
from .files import check_place, write_atomic
from .model import Encoder
from .rows import prepare

TOLERANCE = 1e-4  # largest difference from torch; codes have unit length, h is compared relative to its largest entry
TRIED = (1, 3)  # rows of the batches that are compared


class RunGraph(nn.Module):
    """A trained encoder from pixels in [0, 1]."""

    def __init__(self, model: Encoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        found = self.model((images - self.model.mean) / self.model.std)
        return found.h, found.gated


class CodesGraph(nn.Module):
    """Fitted codes from embeddings; the same sums as `ReadableCodes.transform`."""

    def __init__(self, codes: ReadableCodes) -> None:
        super().__init__()
        self.codes, self.head = codes, codes.head_

    def forward(self, embeddings: Tensor) -> Tensor:
        return self.codes.finish(self.head(prepare(embeddings, self.codes.moments_)))


class PhotoGraph(nn.Module):
    """An encoder and fitted codes, from pixels in [0, 1]."""

    def __init__(self, network: nn.Module, view: View, codes: CodesGraph) -> None:
        super().__init__()
        self.network, self.codes, self.view = network, codes, view

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = self.view.normalise(images)
        h = pool(self.network(x))
        if self.view.mirror:
            h = (h + pool(self.network(x.flip(3)))) / 2
        return h, self.codes(h)


def export(model: Encoder | PhotoCodes, out: Path, *, head: bool = False) -> tuple[list[str], float]:
    """Write what `load` gives, on the CPU, as ONNX; `head`: of codes of photos only the part from embeddings to codes.

    Returns names of the outputs, and the largest difference from torch that was seen. Nothing is written if it is
    above 1e-4.
    """
    if out.suffix.lower() != ".onnx":
        raise InputError(f"{out}: expected a name that ends in .onnx")
    check_place(out)
    onnx, onnxruntime = import_onnx()
    graph, example, view = build_graph(model, head)
    names = ("embeddings", ["codes"]) if view is None else ("images", ["h", "codes"])
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder) / "model.onnx"
        write_graph(graph.eval(), example, names, temporary)
        if view is not None:
            saved = onnx.load(temporary)
            saved.metadata_props.add(key=METADATA, value=json.dumps(asdict(view)))
            onnx.save(saved, temporary)
        worst = compare(graph, example, names[1], temporary, onnxruntime)
        if not worst <= TOLERANCE:
            raise InputError(f"the ONNX file differs from torch by {worst:.2g}, more than {TOLERANCE:g}: not written")
        write_atomic(out, temporary.read_bytes())
    return names[1], worst


def build_graph(model: Encoder | PhotoCodes, head: bool) -> tuple[nn.Module, Tensor, View | None]:
    """What is exported, an input to try it on, and how photos are prepared (None where it takes embeddings)."""
    generator = torch.Generator().manual_seed(0)
    graph: nn.Module
    if isinstance(model, Encoder):
        if head:
            raise InputError("--head is for codes; a run is exported whole")
        graph, view = RunGraph(model), view_of(model)
    else:
        codes = CodesGraph(model.codes)
        if head or model.folder.about().encoder is None:
            return codes, torch.randn(max(TRIED), model.codes.n_features_in_, generator=generator), None
        encoder, view = model.encoder, model.encoder.view
        if encoder.network is None or encoder.transform is not None:
            why = "is not a torch module" if encoder.network is None else "prepares photos by a function of its own"
            raise InputError(f"encoder {encoder.name} {why}: --head exports the part from embeddings to codes")
        graph, view = PhotoGraph(encoder.network, view, codes), replace(view, mirror=False)  # the graph sees to that
    plain = replace(view, mean=(0.0,) * 3, std=(1.0,) * 3)
    return graph, torch.rand(max(TRIED), 3, plain.crop, plain.crop, generator=generator), plain


def write_graph(graph: nn.Module, example: Tensor, names: tuple[str, list[str]], path: Path) -> None:
    """torch's exporter, silent, with any number of rows."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    silent = io.StringIO()
    with (
        contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent), warnings.catch_warnings(),
        or_refuse("torch cannot export this model", Exception),  # whatever the exporter does not know
        or_refuse(f"cannot write {path} (TMPDIR names another folder)"),
    ):  # fmt: skip
        warnings.simplefilter("ignore")
        torch.onnx.export(
            graph, (example,), str(path), input_names=[names[0]], output_names=names[1], dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("rows", min=1)},), external_data=False, verbose=False,
        )  # fmt: skip


@torch.inference_mode()
def compare(graph: nn.Module, example: Tensor, outputs: list[str], path: Path, onnxruntime: Any) -> float:
    """The largest difference between torch and onnxruntime over batches of some sizes."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    with or_refuse("onnxruntime cannot run the exported file", Exception):
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        worst = 0.0
        for rows in TRIED:
            wanted = graph(example[:rows])
            wanted = wanted if isinstance(wanted, tuple) else (wanted,)
            found = session.run(outputs, {session.get_inputs()[0].name: example[:rows].numpy()})
            for a, b in zip(wanted, found):
                if tuple(a.shape) != b.shape:
                    raise InputError(f"the ONNX file gives {list(b.shape)} where torch gives {list(a.shape)}")
                scale = max(1.0, float(a.abs().max()))
                worst = float(np.max([worst, np.abs(a.numpy() - b).max() / scale]))  # NaN stays NaN
        return worst


def import_onnx() -> tuple[Any, Any]:
    """onnx and onnxruntime, from the extra."""
    missing = "export needs the extra: pip install 'bayesncl[onnx]'"
    import_extra("onnxscript", missing)  # which torch's exporter needs
    return import_extra("onnx", missing), import_extra("onnxruntime", missing)
