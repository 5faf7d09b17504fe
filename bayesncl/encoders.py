"""Encoders of photos that others trained: timm's, an ONNX file, any torch module, or a run of ours.

An encoder knows how a photo is cut and scaled for it (`view`), gives `features` numbers a photo, and has a fingerprint
of weights and view. To add a kind: a function from `Request` to an encoder, and its line in KINDS.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from PIL import Image
from torch import Tensor, nn

from .data.archive import checksum
from .data.decode import BICUBIC, BILINEAR, Square, decode_with
from .data.folder import IMAGENET_MEAN, IMAGENET_STD
from .errors import InputError, first_line, import_extra, or_refuse, printable
from .files import digest
from .model import Encoder, in_eval_mode
from .model import load_run as load_model

# Trained without labels, so that it does not favour a list of classes; small enough for a CPU.
DEFAULT, ABOUT_DEFAULT = "timm:vit_small_patch16_224.dino", "DINO, small, 22 million weights, trained without labels"
RESAMPLE = {"bicubic": BICUBIC, "bilinear": BILINEAR, "nearest": 0, "lanczos": 1}
OUTPUTS = ("h", "image_embeds", "pooler_output", "embedding", "embeddings", "features")  # preferred, by name
LARGEST_SIDE = 4096
METADATA = "bayesncl"  # key under which an exported model says how photos are prepared for it

Say = Callable[[str], None]


@dataclass(frozen=True)
class View(Square):
    """What is done to a photo: short side to `resize`, centre square of `crop`, then (x / 255 - mean) / std.

    `mirror`: its embedding is the mean of its own and that of its mirror image.
    """

    resize: int = 256
    crop: int = 224
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    mirror: bool = False

    def __post_init__(self) -> None:
        if not all(type(side) is int and 1 <= side <= LARGEST_SIDE for side in (self.crop, self.resize)):
            raise InputError(f"photos are cut to 1 to {LARGEST_SIDE} pixels a side, got {self.crop} of {self.resize}")
        for name in ("mean", "std"):
            numbers = getattr(self, name)
            listed = isinstance(numbers, list | tuple) and len(numbers) == 3
            sane = listed and all(type(v) in (int, float) and abs(v) < 1e30 for v in numbers)
            if not sane or (name == "std" and min(numbers) <= 0):
                raise InputError(f"{name} must be three numbers, one a colour, got {printable(str(numbers))}")
            object.__setattr__(self, name, tuple(map(float, numbers)))

    def normalise(self, x: Tensor) -> Tensor:
        """Photos [n, 3, S, S] in [0, 1], by mean and standard deviation."""
        mean, std = (torch.tensor(numbers, device=x.device).view(1, 3, 1, 1) for numbers in (self.mean, self.std))
        return (x - mean) / std

    def sized(self, size: int) -> View:
        """The same share of a photo at another size."""
        return replace(self, crop=size, resize=max(size, round(size * self.resize / self.crop)))


@dataclass(frozen=True)
class Request:
    """What a person asked for; None for what the encoder says itself."""

    spec: str
    weights: str | None = None
    size: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    mirror: bool | None = None

    def __post_init__(self) -> None:
        """Checked, since a request may come from a file."""
        if not isinstance(self.mirror, bool | None):
            raise InputError(f"mirror must be true or false, got {printable(str(self.mirror))}")
        if not isinstance(self.spec, str) or not isinstance(self.weights, str | None) or "\0" in self.spec:
            raise InputError("an encoder is a name, its weights a path")
        if self.size is not None and (type(self.size) is not int or not 1 <= self.size <= LARGEST_SIDE):
            raise InputError(f"photos are cut to 1 to {LARGEST_SIDE} pixels a side, got {printable(str(self.size))}")
        self.view(View(224, 224))  # which looks at mean and std

    def view(self, own: View) -> View:
        """The encoder's own view, changed as asked."""
        own = own if self.size is None else own.sized(self.size)
        asked = {name: value for name in ("mean", "std", "mirror") if (value := getattr(self, name)) is not None}
        return replace(own, **asked)


class PhotoEncoder:
    """Photos to embeddings."""

    request: Request  # what was asked for, with its paths made absolute; opens the same encoder again
    view: View  # how photos are prepared, unless `transform` (a PIL image to float [3, H, W]) does that
    features: int  # F
    fingerprint: str  # of weights and preparation
    network: nn.Module | None = None  # the torch module inside
    device: torch.device | str = "cpu"

    def __init__(
        self, request: Request, view: View, weights: str, transform: Callable[[Image.Image], Any] | None = None
    ) -> None:
        self.request, self.view, self.transform = replace(request, mirror=view.mirror), view, transform
        seen = {name: value for name, value in asdict(view).items() if name != "mirror"}
        words = [seen if transform is None else type(transform).__qualname__, weights]
        words += ["mirror"] if view.mirror else []  # unmirrored ones are as they were before there was a choice
        self.fingerprint = hashlib.blake2b(json.dumps(words).encode(), digest_size=16).hexdigest()
        self.features = 0  # not known yet
        with or_refuse(f"encoder {self.name} cannot prepare a photo", Exception):  # of a function that somebody wrote
            grey = self.prepare(Image.new("RGB", (view.resize + 32, view.resize), (128, 128, 128)))
        self.features = self.embed(np.stack([grey, grey])).shape[1]  # what does not work is told before a photo is read

    @property
    def name(self) -> str:
        """For people: without the folders of a path."""
        spec = self.request.spec
        return spec if spec.startswith("timm:") else printable(Path(spec).name if os.sep in spec else spec)

    def prepare(self, image: Image.Image) -> np.ndarray:
        """A photo, RGB and upright, as `embed` takes it: uint8 [3, S, S], or float32 from a `transform`."""
        if self.transform is not None:
            made = self.transform(image)
            return np.asarray(made.detach().cpu() if isinstance(made, Tensor) else made, np.float32)
        return self.view.cut(image)

    @property
    def enough(self) -> int:
        """Pixels a side beyond which a JPEG need not be decoded."""
        return 2 * self.view.resize if self.transform is None else 2048

    def read(self, data: bytes) -> np.ndarray:
        """The bytes of an image file, prepared; Undecodable for what is no image."""
        return decode_with(data, self.enough, self.prepare)

    def embed(self, batch: np.ndarray) -> np.ndarray:
        """Embeddings float32 [n, F] of prepared photos [n, 3, S, S]."""
        x = torch.from_numpy(np.ascontiguousarray(batch))
        side = " x ".join(map(str, x.shape[2:]))
        with or_refuse(f"encoder {self.name} does not take photos of {side}", Exception):  # of a stranger's network
            x = x.to(self.device)
            if x.dtype == torch.uint8:
                x = self.view.normalise(x.float() / 255)
            found = self.compute(x)
            if self.view.mirror:
                found = (found + self.compute(x.flip(-1))) / 2
        if found.shape != (len(x), self.features or found.shape[-1]) or not found.size:
            wanted = f"[{len(x)}, {self.features or 'F'}]"
            raise InputError(f"encoder {self.name} gives {list(found.shape)} for {len(x)} photos, expected {wanted}")
        return found

    def compute(self, x: Tensor) -> np.ndarray:
        """Embeddings of normalised pixels float32 [n, 3, S, S]."""
        raise NotImplementedError


class TorchEncoder(PhotoEncoder):
    """A torch module from normalised pixels to embeddings."""

    def __init__(
        self, request: Request, view: View, network: nn.Module, device: torch.device | str = "cpu",
        transform: Callable[[Image.Image], Any] | None = None,
    ) -> None:  # fmt: skip
        self.network, self.device = network.eval().requires_grad_(False).to(device), device
        layers = hashlib.blake2b(repr(network).encode(), digest_size=8).hexdigest()
        super().__init__(request, view, digest(network.state_dict()) + layers, transform)

    @torch.inference_mode()
    def compute(self, x: Tensor) -> np.ndarray:
        assert self.network is not None
        with in_eval_mode(self.network):
            return pool(self.network(x)).float().cpu().numpy()


class OnnxEncoder(PhotoEncoder):
    """An ONNX file run by onnxruntime."""

    def __init__(
        self, request: Request, view: View, session: Any, output: str, batch: int | None, weights: str
    ) -> None:
        self.session, self.output, self.batch = session, output, batch
        self.input = session.get_inputs()[0].name
        self.half = "float16" in session.get_inputs()[0].type
        super().__init__(request, view, weights)

    def compute(self, x: Tensor) -> np.ndarray:
        rows = x.numpy().astype(np.float16 if self.half else np.float32)
        size = self.batch or len(rows)
        parts = []
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            full = np.concatenate([part, np.repeat(part[-1:], size - len(part), 0)])  # some files have a fixed batch
            found = self.session.run([self.output], {self.input: full})[0]
            whole = pool(torch.from_numpy(np.asarray(found))).float().numpy()
            parts.append(whole[: len(part)] if len(whole) == size else whole)
        return np.concatenate(parts)


def open_encoder(request: Request, device: torch.device | str = "cpu", say: Say = lambda text: None) -> PhotoEncoder:
    """The encoder a person names; `say` is told in one line what takes long.

    `request.spec` is ``timm:NAME`` or a plain timm name, a path that ends in .onnx, ``MODULE:FUNCTION`` (a function
    without arguments that returns a torch module), or the folder or model file of a finished run.
    """
    kind = find_kind(request.spec)
    if request.weights is not None and kind not in ("timm", "module"):
        raise InputError(f"--weights does not go with --encoder {request.spec}, which has its own")
    with or_refuse(f"encoder {printable(request.spec)}"):  # a name too long, a disk that fails
        return KINDS[kind](request, device, say)


def find_kind(spec: str) -> str:
    """Which of KINDS a name means."""
    if not spec:
        raise InputError("--encoder is empty: give a timm model, FILE.onnx, MODULE:FUNCTION, or the folder of a run")
    if spec.startswith("timm:"):
        return "timm"
    if spec.lower().endswith(".onnx"):
        return "onnx"
    if spec.endswith(".safetensors") or os.sep in spec or os.path.isdir(spec):
        return "run"
    return "module" if ":" in spec else "timm"


def default_request(say: Say) -> Request:
    """The encoder for those who name none."""
    import_extra(
        "timm",
        "photos need an encoder: pip install 'bayesncl[timm]' for a small default one, or give "
        "--encoder FILE.onnx, MODULE:FUNCTION, or the folder of a run",
    )
    say(f"encoder {DEFAULT} ({ABOUT_DEFAULT}); --encoder takes another")
    return Request(DEFAULT)


def open_timm(request: Request, device: torch.device | str, say: Say) -> PhotoEncoder:
    """A model of timm without its classifier."""
    name = request.spec.removeprefix("timm:")
    timm = import_extra(
        "timm",
        f"--encoder {request.spec}: a model of timm needs the extra: pip install 'bayesncl[timm]' (other encoders: "
        "FILE.onnx, MODULE:FUNCTION, the folder of a run)",
    )
    if not timm.is_model(name):  # nothing is fetched by a name that timm does not know
        near = difflib.get_close_matches(name, timm.list_models(), 3, 0.5)
        meant = f"; did you mean {', '.join(near)}?" if near else ""
        raise InputError(f"timm has no model {name!r}{meant}")
    if request.weights is None:
        say(f"weights of {name}: from the Hugging Face hub the first time, then from its cache")
    log = logging.getLogger("huggingface_hub")
    level = log.level
    log.setLevel(logging.ERROR)  # a failed download is one error here, not a warning for each of its tries
    try:
        network = timm.create_model(name, pretrained=request.weights is None, num_classes=0)
    except Exception as error:  # the hub, the network, the disk and timm have many kinds
        offline = type(error).__name__ == "LocalEntryNotFoundError"  # of huggingface_hub, which says it in 300 letters
        why = "no connection to the Hugging Face hub, nothing in its cache" if offline else first_line(error)
        raise InputError(f"timm could not make {name}: {why}; --weights FILE takes its weights from a file") from None
    finally:
        log.setLevel(level)
    if request.weights is not None:
        request = load_weights(network, request)
    said = {key: value for key, value in dict(getattr(network, "pretrained_cfg", {})).items() if value is not None}
    channels, height, width = said.get("input_size", (3, 224, 224))
    if channels != 3 or height != width:
        raise InputError(f"timm model {name} takes {channels} x {height} x {width}, expected 3 colours and a square")
    own = View(
        resize=max(height, math.floor(height / said.get("crop_pct", 0.875))),
        crop=height,
        resample=RESAMPLE.get(said.get("interpolation", "bicubic"), BICUBIC),
        mean=said.get("mean", IMAGENET_MEAN),
        std=said.get("std", IMAGENET_STD),
    )
    return TorchEncoder(replace(request, spec=f"timm:{name}"), request.view(own), network, device)


def open_onnx(request: Request, device: torch.device | str, say: Say) -> PhotoEncoder:
    """An ONNX file with one float input [N, 3, S, S]."""
    path = Path(request.spec).expanduser()
    if not os.path.isfile(path):
        raise InputError(f"--encoder {request.spec}: no such file")
    missing = f"--encoder {request.spec} needs the extra: pip install 'bayesncl[onnx]'"
    onnxruntime = import_extra("onnxruntime", missing)
    wanted = ["CPUExecutionProvider"]
    if torch.device(device).type == "cuda" and "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        wanted = ["CUDAExecutionProvider", *wanted]
    with or_refuse(f"{path}: onnxruntime cannot read it", Exception):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(str(path), options, providers=wanted)
        said = json.loads(session.get_modelmeta().custom_metadata_map.get(METADATA, "{}"))
        own = View(**said) if said else None
    inputs = session.get_inputs()
    shape, kind = (list(inputs[0].shape), inputs[0].type) if inputs else ([], "")
    if len(inputs) != 1 or len(shape) != 4 or kind not in ("tensor(float)", "tensor(float16)") or shape[1] == 0:
        seen = ", ".join(f"{each.name} {each.type} {each.shape}" for each in inputs[:4])
        raise InputError(f"{path}: expected one input of float [N, 3, H, W], got {printable(seen, 300)}")
    sides = [side if isinstance(side, int) else None for side in shape]
    if sides[1] not in (None, 3) or sides[2] != sides[3]:
        raise InputError(f"{path}: expected an input [N, 3, S, S] of colour squares, got {shape}")
    fixed = sides[2]
    if fixed is not None and request.size not in (None, fixed):
        raise InputError(f"{path} takes photos of {fixed} x {fixed}, not {request.size}")
    if own is None:
        own = View() if fixed is None else View().sized(fixed)
        if request.mean is None:
            say(f"{path.name} does not say how photos are normalised: ImageNet's mean and std (--mean, --std)")
    outputs = {each.name: each for each in session.get_outputs()}
    flat = [name for name, each in outputs.items() if len(each.shape) == 2]
    output = next((name for name in OUTPUTS if name in outputs), (flat or list(outputs))[0])
    beside = path.with_name(f"{path.name}.data")  # where torch's exporter puts weights
    weights = checksum(path, "sha256") + output + (checksum(beside, "sha256") if beside.is_file() else "")
    request = replace(request, spec=str(path.resolve()))
    return OnnxEncoder(request, request.view(own), session, output, sides[0], weights)


def open_module(request: Request, device: torch.device | str, say: Say) -> PhotoEncoder:
    """What a function of a module returns: a torch module.

    It may have `preprocess`: a function from a PIL image to float [3, H, W], or a dict with any of size, resize, mean,
    std and interpolation. Without it photos are cut to 224 and normalised as for ImageNet.
    """
    module_name, _, function_name = request.spec.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        made: Any = importlib.import_module(module_name)
        for part in function_name.split("."):
            made = getattr(made, part)
        network = made if isinstance(made, nn.Module) else made()
    except Exception as error:  # it is the user's own code: its error, in a line
        raise InputError(f"--encoder {request.spec}: {type(error).__name__}: {first_line(error)}") from None
    if not isinstance(network, nn.Module):
        raise InputError(f"--encoder {request.spec} gives {type(network).__name__}, expected a torch.nn.Module")
    if request.weights is not None:
        request = load_weights(network, request)
    said = getattr(network, "preprocess", None)
    if callable(said) and not isinstance(said, Mapping):
        return TorchEncoder(request, View(mirror=bool(request.mirror)), network, device, transform=said)
    with or_refuse(f"--encoder {request.spec}: its preprocess {printable(str(said))} is not a view", Exception):
        own = read_view(said or {})
    return TorchEncoder(request, request.view(own), network, device)


def open_run(request: Request, device: torch.device | str, say: Say) -> PhotoEncoder:
    """The backbone of a finished run, or of a model file: h."""
    model = load_model(Path(request.spec).expanduser())
    path = str(Path(request.spec).expanduser().resolve())
    return TorchEncoder(replace(request, spec=path), request.view(view_of(model)), model.backbone, device)


KINDS: dict[str, Callable[[Request, torch.device | str, Say], PhotoEncoder]] = {
    "timm": open_timm,
    "onnx": open_onnx,
    "module": open_module,
    "run": open_run,
}
RUNS_CODE = ("module",)  # kinds that import what they name: never because a file says so, only when a person does


def view_of(model: Encoder) -> View:
    """How photos are prepared for a model of ours; one that was trained on mirror images takes a photo's too."""
    data, views = model.recipe.data, model.recipe.views
    return View(data.size, views.size, BICUBIC, data.mean, data.std, mirror=views.flip > 0)


def read_view(said: Mapping[str, Any]) -> View:
    """A view from a dict: size, resize, mean, std, interpolation."""
    if unknown := set(said) - {"size", "resize", "mean", "std", "interpolation"}:
        raise InputError(f"preprocess has {sorted(unknown)}; it may say size, resize, mean, std and interpolation")
    view = View().sized(int(said.get("size", 224)))
    if (name := said.get("interpolation", "bicubic")) not in RESAMPLE:
        raise InputError(f"preprocess: no interpolation {name!r}; there are {', '.join(RESAMPLE)}")
    return replace(
        view,
        resize=int(said.get("resize", view.resize)),
        resample=RESAMPLE[name],
        mean=tuple(map(float, said.get("mean", view.mean))),
        std=tuple(map(float, said.get("std", view.std))),
    )


def load_weights(network: nn.Module, request: Request) -> Request:
    """Fill a network from a .safetensors or .pt file; what it has no place for is left out, nothing is unpickled."""
    assert request.weights is not None
    path = Path(request.weights).expanduser()
    if not os.path.isfile(path):
        raise InputError(f"--weights {request.weights}: no such file")
    try:
        if path.suffix == ".safetensors":
            found: Any = safetensors.torch.load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch and pickle have many; their advice to unpickle is not ours
        raise InputError(
            f"{path}: not a .safetensors file or a plain state_dict that can be read ({type(error).__name__})"
        ) from None
    for key in ("state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not found or not all(isinstance(t, Tensor) for t in found.values()):
        raise InputError(f"{path}: expected a state_dict, tensors by name")
    tensors = {str(name).removeprefix("module."): t for name, t in found.items()}
    own = network.state_dict()
    if missing := [name for name in own if name not in tensors]:
        lacks = f"{len(missing)} of {len(own)} tensors, e.g. {missing[0]}"
        raise InputError(f"{path} is of another model: it lacks {lacks}")
    if wrong := [name for name in own if own[name].shape != tensors[name].shape]:
        shapes = f"{list(tensors[wrong[0]].shape)}, expected {list(own[wrong[0]].shape)}"
        raise InputError(f"{path} is of another model: {wrong[0]} is {shapes}")
    network.load_state_dict({name: tensors[name] for name in own})
    return replace(request, weights=str(path.resolve()))


def pool(output: Any) -> Tensor:
    """What a network says as [N, F]: maps [N, F, H, W] are averaged, of tokens [N, T, F] the first is taken."""
    if isinstance(output, Mapping):
        output = next((output[name] for name in OUTPUTS if name in output), next(iter(output.values()), None))
    if isinstance(output, list | tuple) and output:
        output = output[0]
    if not isinstance(output, Tensor):
        raise InputError(f"an encoder must give a tensor, got {type(output).__name__}")
    if output.ndim == 4:
        return output.mean((2, 3))
    return output[:, 0] if output.ndim == 3 else output
