"""ONNX files: the same numbers as torch, an exported run as an encoder, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import bayesncl
from bayesncl.encoders import Request, open_encoder
from bayesncl.errors import InputError
from bayesncl.export import export
from bayesncl.model import build_model, model_bytes
from tests.commands import draw_folder, refused
from tests.conftest import tiny_images, tiny_recipe

NET = "tests.test_encoders:Net"


def run_onnx(path: Path, x: np.ndarray) -> list[np.ndarray]:
    session = pytest.importorskip("onnxruntime").InferenceSession(str(path))
    return session.run(None, {session.get_inputs()[0].name: x})


@pytest.fixture
def onnx() -> None:
    for name in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(name)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InputError, match=r"pip install 'bayesncl\[onnx\]'"):
        export(build_model(tiny_recipe()), tmp_path / "m.onnx")
    with pytest.raises(InputError, match=r"ends in .onnx"):
        export(build_model(tiny_recipe()), tmp_path / "m.pt")
    (tmp_path / "m.onnx").write_bytes(b"x")
    with pytest.raises(InputError, match=r"needs the extra: pip install 'bayesncl\[onnx\]'"):
        open_encoder(Request(str(tmp_path / "m.onnx")))


@pytest.mark.parametrize("method", ["ncl", "bayesncl", "ncl-topk"])
def test_a_run_comes_out_and_back_in(onnx, method: str, tmp_path: Path) -> None:
    flip = 0.5 * (method == "ncl")
    changes = ["model.top_k=4"] if method == "ncl-topk" else []
    model = build_model(tiny_recipe(method, f"views.flip={flip}", *changes)).eval()
    (tmp_path / "model.safetensors").write_bytes(model_bytes(model))
    outputs, worst = export(model, tmp_path / "m.onnx")
    assert outputs == ["h", "codes"] and 0 <= worst < 1e-4
    assert {path.name for path in tmp_path.iterdir()} == {"model.safetensors", "m.onnx"}
    pixels = tiny_images(5).pixels
    h, codes = run_onnx(tmp_path / "m.onnx", pixels.astype(np.float32) / 255)
    np.testing.assert_allclose(codes, model.encode(pixels), atol=1e-4)
    whole, file = (open_encoder(Request(str(tmp_path / name))) for name in ("model.safetensors", "m.onnx"))
    assert (file.features, file.view.crop) == (whole.features, whole.view.crop)
    np.testing.assert_allclose(file.embed(pixels), whole.embed(pixels), rtol=1e-3, atol=1e-4)
    plain = open_encoder(Request(str(tmp_path / "m.onnx"), mirror=False))
    np.testing.assert_allclose(plain.embed(pixels), h, rtol=1e-3, atol=1e-4)
    assert file.view.mirror is bool(flip)  # an encoder of photos takes mirror images where the run did


@pytest.mark.parametrize("method", ["prototypes", "ncl", "bayesncl", "sae", "csr"])
def test_codes_of_arrays(onnx, method: str, tmp_path: Path, run) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(0, 1, (40, 24)).astype(np.float32)
    np.save("x.npy", x)
    assert run("fit", "x.npy", "-o", "codes", "--method", method, "--dim", "8", "--keep", "3", "--quiet").status == 0
    answer = run("export", "codes", "-o", "c.onnx")
    assert answer.status == 0 and "c.onnx: gives codes; differs from torch by" in answer.err
    z = bayesncl.load("codes").transform(x)
    np.testing.assert_allclose(run_onnx(tmp_path / "c.onnx", x)[0], z, atol=1e-4)
    np.testing.assert_allclose(run_onnx(tmp_path / "c.onnx", x[:1])[0], z[:1], atol=1e-4)


@pytest.mark.parametrize("mirror", ["--mirror", "--no-mirror"])
def test_codes_of_photos(onnx, mirror: str, tmp_path: Path, run) -> None:
    draw_folder(tmp_path / "p")
    assert run("fit", "p", "-o", "codes", "--encoder", NET, mirror, "--dim", "4", "--quiet").status == 0
    refused(run("export", "codes", "-o", "c.onnx", "--quiet"), "which is code")
    assert run("export", "codes", "-o", "c.onnx", "--encoder", NET, "--quiet").status == 0
    model = bayesncl.load("codes", encoder=NET)
    photos = sorted((tmp_path / "p").rglob("*.png"))
    x = np.stack([model.encoder.read(path.read_bytes()) for path in photos]).astype(np.float32) / 255
    h, codes = run_onnx(tmp_path / "c.onnx", x)
    np.testing.assert_allclose(codes, model.encode(photos), atol=1e-4)
    np.testing.assert_allclose(h, model.embed(photos), atol=1e-4)
    assert run("export", "codes", "-o", "head.onnx", "--head", "--quiet").status == 0
    np.testing.assert_allclose(run_onnx(tmp_path / "head.onnx", h)[0], codes, atol=1e-4)


def test_an_onnx_file_of_others(onnx, tmp_path: Path) -> None:
    from tests.test_encoders import Net

    x = torch.rand(2, 3, 32, 32)
    for network, example, name in ((Net(), x, "net"), (torch.nn.Linear(4, 2), torch.rand(1, 4), "flat")):
        path = str(tmp_path / f"{name}.onnx")
        torch.onnx.export(network.eval(), (example,), path, dynamo=True, external_data=False, verbose=False)
    said: list[str] = []
    found = open_encoder(Request(str(tmp_path / "net.onnx")), say=said.append)
    assert (found.view.crop, found.features, found.batch) == (32, 6, 2) and "ImageNet" in said[0]
    three = x[[0, 1, 1]]  # in batches of two
    np.testing.assert_allclose(found.compute(three), Net()(three).detach(), atol=1e-5)
    with pytest.raises(InputError, match="takes photos of 32 x 32, not 64"):
        open_encoder(Request(str(tmp_path / "net.onnx"), size=64))
    (tmp_path / "text.onnx").write_text("no")
    for name, message in (("flat", r"expected one input of float \[N, 3, H, W\]"), ("text", "cannot read it")):
        with pytest.raises(InputError, match=message):
            open_encoder(Request(str(tmp_path / f"{name}.onnx")))


def test_what_differs_is_not_written(onnx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayesncl.export.TOLERANCE", -1.0)
    with pytest.raises(InputError, match=r"differs from torch by .*: not written"):
        export(build_model(tiny_recipe("ncl")), tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_codes_through_a_model_of_timm_are_an_encoder_again(onnx, tmp_path: Path, run, monkeypatch) -> None:
    """By a stand-in for timm: what is exported prepares photos as its model does and gives the same embeddings."""
    from tests.test_encoders import StandIn

    monkeypatch.setitem(sys.modules, "timm", StandIn("timm"))
    photos = sorted(draw_folder(tmp_path / "p").rglob("*.png"))
    assert run("fit", "p", "-o", "codes", "--encoder", "timm:tiny", "--dim", "4", "--quiet").status == 0
    assert run("export", "codes", "-o", "c.onnx", "--quiet").status == 0
    whole, file = (open_encoder(Request(spec)) for spec in ("timm:tiny", "c.onnx"))
    assert (file.view.resize, file.view.crop, file.view.resample) == (60, 48, 2)
    one, other = (each.embed(np.stack([each.read(p.read_bytes()) for p in photos])) for each in (whole, file))
    np.testing.assert_allclose(other, one, atol=1e-4)
    assert run("fit", "p", "-o", "again", "--encoder", "c.onnx", "--dim", "4", "--quiet").status == 0
    z, same = (bayesncl.load(folder).encode(photos) for folder in ("codes", "again"))
    np.testing.assert_allclose(same, z, atol=2e-3)


def write_onnx(path: Path, last: str, inputs: int = 1, side: object = 32, **options: object) -> None:
    """Mean colours, then one more node named `last` with its attributes; `meta` and `external` as asked for."""
    import onnx
    from onnx import TensorProto, helper

    meta, external = options.pop("meta", None), options.pop("external", None)
    x = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, ["N", 3, side, side]) for i in range(inputs)]
    nodes = [helper.make_node("ReduceMean", ["x0"], ["m"], axes=[2, 3], keepdims=0)] if inputs else []
    weights = []
    if external is not None:
        tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3], data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value=external)
        weights.append(tensor)
    if not inputs:
        options["value"] = onnx.numpy_helper.from_array(np.ones((2, 3), np.float32))
    given = ["m", *(["w"] if weights else [])] if inputs else []
    nodes.append(helper.make_node(last, given, ["y"], **options))
    y = helper.make_empty_tensor_value_info("y")
    if last == "Constant":
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])
    model = helper.make_model(helper.make_graph(nodes, "g", x, [y], weights), ir_version=8)
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", 17))
    if meta is not None:
        model.metadata_props.add(key="bayesncl", value=meta)
    path.write_bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"last": "Constant", "inputs": 0}, "expected one input"),
        ({"last": "Add", "inputs": 2}, "cannot read it|expected one input"),
        ({"last": "Shape"}, r"gives \[2\] for 2 photos"),
        ({"last": "ArgMax", "axis": 0}, "gives .* for 2 photos|does not take"),
        ({"last": "Cast", "to": 8}, "does not take photos"),  # to text
        ({"last": "Transpose", "perm": [1, 0]}, r"gives \[3, 2\] for 2 photos"),
        ({"last": "Identity", "side": 100_000}, "pixels a side"),
        ({"last": "Identity", "meta": '{"crop": 32.0, "resize": 32}'}, "pixels a side"),
        ({"last": "Identity", "meta": "[" * 5000}, "cannot read it"),
        ({"last": "Identity", "meta": '{"resample": 99, "crop": 32, "resize": 32}'}, "cannot prepare a photo"),
        ({"last": "Add", "external": "../secret.bin"}, "cannot read it"),
        ({"last": "Add", "external": "link.bin"}, "cannot read it"),
    ],
)
def test_hostile_onnx_files(onnx, options: dict, said: str, tmp_path: Path) -> None:
    """What is not from photos to rows is refused in a line, weights outside the file's folder are not read."""
    (tmp_path / "secret.bin").write_bytes(np.ones(3, np.float32).tobytes())
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/link.bin").symlink_to(tmp_path / "secret.bin")
    write_onnx(tmp_path / "sub/e.onnx", **options)
    with pytest.raises(InputError, match=said) as told:
        open_encoder(Request(str(tmp_path / "sub/e.onnx")))
    assert "\n" not in str(told.value) and len(str(told.value)) < 700


def test_weights_beside_an_onnx_file_are_part_of_it(onnx, tmp_path: Path) -> None:
    """torch's exporter puts them into NAME.data: other weights are another encoder."""
    write_onnx(tmp_path / "e.onnx", "Add", external="e.onnx.data")
    marks = []
    for value in (1.0, 2.0):
        (tmp_path / "e.onnx.data").write_bytes(np.full(3, value, np.float32).tobytes())
        marks.append(open_encoder(Request(str(tmp_path / "e.onnx"))).fingerprint)
    assert marks[0] != marks[1]


def test_no_room_for_an_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bayesncl.export.import_onnx", lambda: (None, None))
    monkeypatch.setattr(torch.onnx, "export", full)
    with pytest.raises(InputError, match=r"TMPDIR names another folder.: No space left on device"):
        export(build_model(tiny_recipe("ncl")), tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())
