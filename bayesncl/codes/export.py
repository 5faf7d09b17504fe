"""ONNX files of runs and codes, compared with torch before they are written.

A run: images float [N, 3, S, S] in [0, 1] to h and codes. Codes of photos: the same through their
encoder, if it is a torch module. Codes of arrays, or the head alone: embeddings [N, F] to codes.
The metadata says how images are prepared, so an exported run can serve as an encoder.
"""

import contextlib
import io
import json
import logging
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesncl.codes.encoders import METADATA_KEY, View, open_session, pool, view_of
from bayesncl.codes.open import PhotoCodes
from bayesncl.errors import InputError, as_input_error, import_extra
from bayesncl.io import check_output_file, write_atomic
from bayesncl.measure.preprocess import prepare
from bayesncl.method.encoder import Encoder

TOLERANCE = 1e-4  # largest difference from torch, relative to the largest entry if above 1
BATCH_SIZES = (1, 3)  # compared


class Graph(nn.Module):
    """From pixels in [0, 1] to h and codes; without a network, from embeddings to codes."""

    def __init__(
        self, head: nn.Module, encode: Callable[[Tensor], Tensor],
        network: nn.Module | None = None, view: View | None = None, mirror: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.head, self.encode = head, encode
        self.network, self.view, self.mirror = network, view, mirror

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        if self.network is None or self.view is None:
            return (self.encode(x),)
        x = self.view.normalize(x)
        h = pool(self.network(x))
        if self.mirror:
            h = (h + pool(self.network(x.flip(3)))) / 2
        return h, self.encode(h)


def export(
    model: Encoder | PhotoCodes, out: Path, *, head: bool = False
) -> tuple[list[str], float]:
    """Write a loaded model (on the CPU) as ONNX; `head`: only from embeddings to codes.

    Returns the names of the outputs and the largest difference from torch. Nothing is written if
    that exceeds 1e-4.
    """
    if out.suffix.lower() != ".onnx":
        raise InputError(f"{out}: expected a name that ends in .onnx")
    check_output_file(out)
    missing = "export needs ONNX: pip install onnx onnxruntime onnxscript"
    _, onnx, onnxruntime = (  # torch's exporter needs onnxscript
        import_extra(name, missing) for name in ("onnxscript", "onnx", "onnxruntime")
    )
    graph, shape, view = build_graph(model, head)
    generator = torch.Generator().manual_seed(0)
    example = torch.rand(max(BATCH_SIZES), *shape, generator=generator)
    source, outputs = ("embeddings", ["codes"]) if view is None else ("images", ["h", "codes"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        write_graph(graph.eval(), example, source, outputs, path)
        if view is not None:
            saved = onnx.load(path)
            saved.metadata_props.add(key=METADATA_KEY, value=json.dumps(asdict(view)))
            onnx.save(saved, path)
        with as_input_error("onnxruntime cannot run the exported file", Exception):
            worst = compare(graph, example, open_session(onnxruntime, path))
        if not worst <= TOLERANCE:
            raise InputError(f"the ONNX file differs from torch by {worst:.2g}: not written")
        write_atomic(out, path.read_bytes())
    return outputs, worst


def build_graph(
    model: Encoder | PhotoCodes, head: bool
) -> tuple[nn.Module, tuple[int, ...], View | None]:
    """The module to export, the shape of its input, and how images are prepared for it, if any."""
    if isinstance(model, Encoder):
        if head:
            raise InputError("--head applies to codes; a run is exported as a whole")
        view = view_of(model)
        graph = Graph(model.head, lambda h: model.head(h).gated, model.backbone, view)
    else:
        codes = model.codes

        def encode(h: Tensor) -> Tensor:  # as ReadableCodes.transform does
            return codes.select_active(codes.head_(prepare(h, codes.moments_)))

        if head or model.folder.about().encoder is None:
            return Graph(codes.head_, encode), (codes.n_features_in_,), None
        encoder, view = model.encoder, model.encoder.view
        if encoder.network is None:
            why = "not a torch module with a plain image preparation"
            raise InputError(f"encoder {encoder.name} is {why}: export the codes with --head")
        graph = Graph(codes.head_, encode, encoder.network, view, view.mirror)
        view = replace(view, mirror=False)  # the graph mirrors by itself
    view = replace(view, mean=(0.0,) * 3, std=(1.0,) * 3)  # and normalizes
    return graph, (3, view.crop, view.crop), view


def write_graph(
    graph: nn.Module, example: Tensor, source: str, outputs: list[str], path: Path
) -> None:
    """torch's exporter without its output, for any number of rows."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    silent = io.StringIO()
    with (
        contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent),
        warnings.catch_warnings(), as_input_error("torch cannot export this model", Exception),
        as_input_error(f"cannot write {path} (TMPDIR selects another folder)"),
    ):  # fmt: skip
        warnings.simplefilter("ignore")
        torch.onnx.export(
            graph, (example,), str(path), input_names=[source], output_names=outputs, dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("rows", min=1)},), external_data=False,
            verbose=False,
        )  # fmt: skip


@torch.inference_mode()
def compare(graph: nn.Module, example: Tensor, session: Any) -> float:
    """The largest difference between torch and onnxruntime over several batch sizes."""
    differences = []
    for n in BATCH_SIZES:
        found = session.run(None, {session.get_inputs()[0].name: example[:n].numpy()})
        for a, b in zip(graph(example[:n]), map(torch.from_numpy, found), strict=True):
            differences.append((a - b).abs().max() / a.abs().max().clamp_min(1))
    return float(torch.stack(differences).max())  # NaN stays NaN
