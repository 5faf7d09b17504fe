"""Image encoders trained by others: timm models, ONNX files, torch modules, and finished runs.

To add a kind of encoder: a function from `Request` to `PhotoEncoder`, and its line in OPENERS.
"""

from __future__ import annotations

import difflib
import importlib
import itertools
import json
import operator
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from PIL import Image
from torch import Tensor, nn

from bayesncl.data.cache import Entry, read_files
from bayesncl.data.decode import BICUBIC, BILINEAR, Square
from bayesncl.errors import InputError, as_input_error, first_line, import_extra, printable
from bayesncl.method.encoder import Encoder
from bayesncl.recipes import IMAGENET_MEAN, IMAGENET_STD
from bayesncl.training.run_folder import load_run

# Small enough for a CPU, and trained without labels, so that it favors no list of classes.
DEFAULT = "timm:vit_small_patch16_224.dino"
ABOUT_DEFAULT = "DINO ViT-S/16, 22 million weights, trained without labels"
RESAMPLE = {"bicubic": BICUBIC, "bilinear": BILINEAR, "nearest": 0, "lanczos": 1}
# preferred outputs of networks that return several
OUTPUTS = ("h", "image_embeds", "pooler_output", "embedding", "embeddings", "features")
MAX_SIDE = 4096  # pixels
METADATA_KEY = "bayesncl"  # of an exported ONNX file: how images are prepared for it
PROBE_SIZE, SIGNATURE_DIMS = (256, 320), 32
SIGNATURE_TOLERANCE = 1e-2  # relative; devices and versions of torch differ by less than this
NETWORK_SECONDS = 5
BATCH_SIZE = {"cpu": 16, "cuda": 256}
WAYS_OUT = (
    "without a network use --weights FILE, --encoder FILE.onnx, or a Hugging Face cache that has "
    "the weights (HF_HOME, with HF_HUB_OFFLINE=1)"
)

Notify = Callable[[str], None]
Signature = dict[str, Any]
Embedded = Iterator[np.ndarray | str]  # the embedding [F] of each image, or why it has none


@dataclass(frozen=True)
class View(Square):
    """Image preparation: short side to `resize`, center crop, then (x / 255 - mean) / std.

    With `mirror`, the embedding is the mean of those of the image and its mirror image.
    """

    resize: int = 256
    crop: int = 224
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    mirror: bool = False

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            object.__setattr__(self, name, tuple(map(float, getattr(self, name))))
        sides_fit = 1 <= min(self.crop, self.resize) <= max(self.crop, self.resize) <= MAX_SIDE
        if not (sides_fit and len(self.mean) == len(self.std) == 3 and min(self.std) > 0):
            expected = f"sides of 1 to {MAX_SIDE} pixels, three means, three positive std"
            raise InputError(f"invalid image preparation, expected {expected}: {self}")

    def normalize(self, x: Tensor) -> Tensor:
        """Normalize images [n, 3, S, S] in [0, 1]."""
        mean, std = (torch.tensor(v, device=x.device) for v in (self.mean, self.std))
        return (x - mean.view(1, 3, 1, 1)) / std.view(1, 3, 1, 1)

    def at_size(self, size: int) -> View:
        """The same share of the image at another size."""
        return replace(self, crop=size, resize=max(size, round(size * self.resize / self.crop)))


@dataclass(frozen=True)
class Request:
    """An encoder by name, with options; None keeps the encoder's own value.

    codes.json has the one that opens the encoder of the embeddings again, with its signature.
    """

    spec: str
    weights: str | None = None
    size: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    mirror: bool | None = None
    signature: Signature | None = None  # what the encoder did when it was opened

    def given(self) -> dict[str, Any]:
        """The options that were given."""
        return {name: v for name, v in asdict(self).items() if v not in (None, "")}

    def view(self, own: View) -> View:
        """The encoder's own view with the requested changes."""
        own = own if self.size is None else own.at_size(self.size)
        given = self.given()
        return replace(own, **{k: given[k] for k in ("mean", "std", "mirror") if k in given})


class PhotoEncoder:
    """Embeddings of images.

    `request` opens the same encoder again; its paths are absolute, and its signature is the view
    and what becomes of two fixed images, see `same_signature`. `view`, which is `own` with the
    requested changes, prepares images, unless `transform` (PIL image to float [3, H, W]) does.
    `compute` takes pixels [n, 3, S, S] to what `pool` takes. `network` is `compute` if that is a
    torch module without a `transform`. `features` is the length F of an embedding.
    """

    def __init__(
        self, request: Request, own: View, compute: Callable[[Tensor], Any],
        device: torch.device | str = "cpu", transform: Callable[[Image.Image], Any] | None = None,
    ) -> None:  # fmt: skip
        self.request, self.view = request, request.view(own)
        self.compute, self.device, self.transform = compute, device, transform
        if isinstance(compute, nn.Module):
            compute.eval().requires_grad_(False).to(device)
        self.network = compute if isinstance(compute, nn.Module) and transform is None else None
        self.features = 0
        with as_input_error(f"encoder {self.name} cannot prepare an image", Exception):
            probes = np.stack([self.prepare(image) for image in probe_images()])
        embeddings = self.embed(probes)  # an encoder that does not work fails here, at once
        self.features = embeddings.shape[1]
        signs = np.random.RandomState(0).choice([-1.0, 1.0], (self.features, SIGNATURE_DIMS))
        rows = embeddings.astype(np.float64) @ signs
        signature = {
            "view": json.dumps(asdict(self.view)) if transform is None else "its own",
            "probes": [[float(f"{v:.6g}") for v in row] for row in rows],
        }
        self.request = replace(request, mirror=self.view.mirror, signature=signature)

    @property
    def name(self) -> str:
        """Short name for messages: without the folders of a path."""
        return printable(self.request.spec.rpartition(os.sep)[2])

    def prepare(self, image: Image.Image) -> np.ndarray:
        """Input of `embed` from an RGB image: uint8 [3, S, S], or float32 by `transform`."""
        if self.transform is None:
            return self.view.cut(image)
        x = self.transform(image)
        return np.asarray(x.detach().cpu() if isinstance(x, Tensor) else x, np.float32)

    @property
    def min_side(self) -> int:
        """Side to which an image may be reduced before it is prepared."""
        return self.view.min_side if self.transform is None else 2048

    @torch.inference_mode()
    def embed(self, batch: np.ndarray) -> np.ndarray:
        """Embeddings float32 [n, F] of prepared images [n, 3, S, S]."""
        x = torch.from_numpy(np.ascontiguousarray(batch))
        side = " x ".join(map(str, x.shape[2:]))
        with as_input_error(f"encoder {self.name} does not take images of {side}", Exception):
            x = x.to(self.device)
            if x.dtype == torch.uint8:
                x = self.view.normalize(x.float() / 255)
            views = [x, x.flip(-1)] if self.view.mirror else [x]
            rows = [pool(self.compute(view)).float() for view in views]
            h: np.ndarray = torch.stack(rows).mean(0).cpu().numpy()
        if h.shape != (len(x), self.features or h.shape[-1]) or not h.size:
            expected = f"[{len(x)}, {self.features or 'F'}]"
            raise InputError(f"encoder {self.name} returned {list(h.shape)}, expected {expected}")
        return h

    def embed_files(self, entries: Sequence[Entry]) -> Embedded:
        """Embeddings of image files."""
        size = BATCH_SIZE.get(torch.device(self.device).type, BATCH_SIZE["cpu"])
        images = read_files((e.path for e in entries), self.prepare, self.min_side, 2 * size)
        while batch := list(itertools.islice(images, size)):
            good = [x for x in batch if not isinstance(x, Exception)]
            with as_input_error(f"encoder {self.name} prepares images unequally", ValueError):
                rows = iter(self.embed(np.stack(good)) if good else ())
            for x in batch:
                if isinstance(x, Exception):
                    yield first_line(x)
                else:
                    row = next(rows)
                    yield row if np.isfinite(row).all() else "its embedding is not finite"


def probe_images() -> list[Image.Image]:
    """Two fixed images: colored waves of several scales with noise, and its flipped negative."""
    y, x = np.mgrid[: PROBE_SIZE[0], : PROBE_SIZE[1]] / 16.0
    waves = np.stack([np.sin(0.7 * x + y), np.cos(x * y / 7), np.sin(1.3 * y - x / 3)], -1)
    noise = np.random.RandomState(0).randint(-40, 40, waves.shape)
    one = np.clip(128 + 80 * waves + noise, 0, 255).astype(np.uint8)
    return [Image.fromarray(image) for image in (one, 255 - one[::-1, :, ::-1])]


def same_signature(one: Signature | None, two: Signature | None) -> bool:
    """Whether two encoders have the same view and embed the probe images alike.

    Weights do not identify an encoder: its code or runtime may change. The tolerance is relative
    to the distance of the two probes.
    """
    if one is None or two is None:
        return False
    a, b = np.array(one["probes"], float), np.array(two["probes"], float)
    if one["view"] != two["view"] or a.shape != b.shape:
        return False
    spread = np.linalg.norm(a[0] - a[1]) + 1e-4 * np.linalg.norm(a)
    return bool(np.linalg.norm(a - b) <= SIGNATURE_TOLERANCE * spread)


def open_encoder(
    request: Request, device: torch.device | str = "cpu", notify: Notify = lambda text: None
) -> PhotoEncoder:
    """Open an encoder by name.

    `request.spec` is ``timm:NAME`` or a plain timm name, a path that ends in .onnx,
    ``MODULE:FUNCTION`` (a function without arguments that returns a torch module), or the folder
    or model file of a finished run; without a name it is the default. `notify` gets a line before
    anything that takes long.
    """
    if not request.spec:
        missing = "photos need an encoder: pip install timm for the default, or --encoder "
        import_extra("timm", f"{missing}FILE.onnx, MODULE:FUNCTION or RUN")
        notify(f"encoder {DEFAULT} ({ABOUT_DEFAULT}); --encoder selects another")
        request = replace(request, spec=DEFAULT)
    kind = find_kind(request.spec)
    if request.weights is not None and kind not in ("timm", "module"):
        raise InputError(f"--weights does not apply to --encoder {request.spec}")
    with as_input_error(f"encoder {printable(request.spec)}", OSError, ValueError):
        return OPENERS[kind](request, device, notify)


def find_kind(spec: str) -> str:
    """The key of OPENERS that a name means."""
    if spec.startswith("timm:"):
        return "timm"
    if spec.lower().endswith(".onnx"):
        return "onnx"
    if spec.endswith(".safetensors") or os.sep in spec or os.path.isdir(spec):
        return "run"
    return "module" if ":" in spec else "timm"


def open_timm(request: Request, device: torch.device | str, notify: Notify) -> PhotoEncoder:
    """A timm model without its classifier."""
    network, request = create_timm(request, notify, num_classes=0)
    config = {k: v for k, v in getattr(network, "pretrained_cfg", {}).items() if v is not None}
    channels, height, width = config.get("input_size", (3, 224, 224))
    if channels != 3 or height != width:
        size = f"{channels} x {height} x {width}"
        raise InputError(f"{request.spec} takes {size}, expected 3 colors and a square")
    resize = max(height, int(height / config.get("crop_pct", 0.875)))
    given = {name: config[name] for name in ("interpolation", "mean", "std") if name in config}
    return PhotoEncoder(request, make_view(height, resize=resize, **given), network, device)


def create_timm(request: Request, notify: Notify, **options: Any) -> tuple[nn.Module, Request]:
    """A timm model with its weights, and the request with full names."""
    name = request.spec.removeprefix("timm:")
    timm = import_extra("timm", f"--encoder {request.spec} needs timm: pip install timm")
    if not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), 3, 0.5)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise InputError(f"timm has no model {name!r}{hint}")
    options |= {"pretrained": False} if request.weights else find_weights(timm, name, notify)
    try:
        network = timm.create_model(name, **options)
    except Exception as error:  # timm, the hub, the network and the disk raise many types
        raise InputError(f"timm cannot create {name}: {first_line(error)}; {WAYS_OUT}") from None
    return network, replace(load_weights(network, request), spec=f"timm:{name}")


def read_classifier(request: Request, notify: Notify) -> tuple[list[str], np.ndarray]:
    """ImageNet's class names and the classifier rows [C, F] of a timm model."""
    if find_kind(request.spec) != "timm":
        spec = printable(request.spec)
        raise InputError(f"encoder {spec} is not a timm model: use --words and --vectors")
    network, request = create_timm(request, notify)
    rows = getattr(network.get_classifier(), "weight", None)  # type: ignore[operator]
    data = importlib.import_module("timm.data")
    subset = data.infer_imagenet_subset(network)
    if rows is None or subset is None:
        raise InputError(f"{request.spec} has no ImageNet classifier: use --words and --vectors")
    names = data.ImageNetInfo(subset).label_descriptions()  # the first of several synonyms
    return [text.split(",")[0] for text in names], rows.detach().flatten(1).float().numpy()


def find_weights(timm: Any, name: str, notify: Notify) -> dict[str, Any]:
    """Options of `timm.create_model` for pretrained weights, from the local cache if possible.

    Left alone, huggingface_hub asks the network first and waits almost a minute without one.
    """
    config = timm.get_pretrained_cfg(name)
    repository, url = getattr(config, "hf_hub_id", None), getattr(config, "url", None)
    if repository:
        missing = "weights come from the Hugging Face hub: pip install huggingface_hub"
        hub = import_extra("huggingface_hub", missing)
        cached = hub.try_to_load_from_cache(repository, "model.safetensors")
        if isinstance(cached, str):
            return {"pretrained": True, "pretrained_cfg_overlay": {"file": cached}}
        url = f"{hub.constants.ENDPOINT}/{repository}"
    notify(f"downloading the weights of {name} from {url} (once; later from its cache)")
    if url:
        what = f"cannot reach {url} to download the weights of {name}; {WAYS_OUT}"
        with as_input_error(what, OSError, ValueError), suppress(urllib.error.HTTPError):
            urllib.request.urlopen(url, timeout=NETWORK_SECONDS).close()
    return {"pretrained": True}


def open_onnx(request: Request, device: torch.device | str, notify: Notify) -> PhotoEncoder:
    """An ONNX file with one float input [N, 3, S, S]."""
    path = Path(request.spec).expanduser()
    if not os.path.isfile(path):
        raise InputError(f"--encoder {request.spec}: no such file")
    missing = f"--encoder {request.spec} needs onnxruntime: pip install onnxruntime"
    onnxruntime = import_extra("onnxruntime", missing)
    with as_input_error(f"{path}: onnxruntime cannot read it", Exception):
        session = open_session(onnxruntime, path, device)
        saved = json.loads(session.get_modelmeta().custom_metadata_map.get(METADATA_KEY, "{}"))
        own = View(**saved) if saved else None
    source, *more = session.get_inputs()
    shape = [side if isinstance(side, int) else None for side in source.shape]
    if more or len(shape) != 4 or shape[1] not in (None, 3) or shape[2] != shape[3]:
        raise InputError(f"{path}: expected one float input [N, 3, S, S], got {source.shape}")
    batch, side = shape[0], shape[2]
    if side is not None and request.size not in (None, side):
        raise InputError(f"{path} takes images of {side} x {side}, not {request.size}")
    if own is None:
        own = View() if side is None else View().at_size(side)
        if request.mean is None:
            notify(f"{path.name}: assuming ImageNet's mean and std (change with --mean, --std)")
    # the output with a known name, else one that is [N, F] already, else the first
    outputs = session.get_outputs()
    output = min(outputs, key=lambda each: (each.name not in OUTPUTS, len(each.shape) != 2)).name
    dtype = np.float16 if "float16" in source.type else np.float32

    def compute(x: Tensor) -> Tensor:
        parts = []
        for part in x.split(batch or len(x)):  # a file may fix the batch size: pad to it
            padding = part[-1:].expand((batch or len(part)) - len(part), -1, -1, -1)
            rows = torch.cat([part, padding]).numpy().astype(dtype)
            parts.append(session.run([output], {source.name: rows})[0][: len(part)])
        return torch.from_numpy(np.concatenate(parts))

    request = replace(request, spec=str(path.resolve()))
    return PhotoEncoder(request, own, compute)


def open_session(onnxruntime: Any, path: Path, device: torch.device | str = "cpu") -> Any:
    """A session of onnxruntime that prints nothing."""
    wanted = ["CPUExecutionProvider"]
    if torch.device(device).type == "cuda":
        wanted.insert(0, "CUDAExecutionProvider")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    providers = [name for name in wanted if name in onnxruntime.get_available_providers()]
    return onnxruntime.InferenceSession(str(path), options, providers=providers)


def open_module(request: Request, device: torch.device | str, notify: Notify) -> PhotoEncoder:
    """The torch module that a function of a Python module returns.

    It may have an attribute `preprocess`: a function from a PIL image to float [3, H, W], or a
    dict with any of size, resize, mean, std and interpolation. The default is ImageNet's at 224.
    """
    module_name, _, function_name = request.spec.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = operator.attrgetter(function_name)(importlib.import_module(module_name))
        network = found if isinstance(found, nn.Module) else found()
    except Exception as error:  # the user's own code
        kind = type(error).__name__
        raise InputError(f"--encoder {request.spec}: {kind}: {first_line(error)}") from None
    if not isinstance(network, nn.Module):
        kind = type(network).__name__
        raise InputError(f"--encoder {request.spec} returned {kind}, expected a torch.nn.Module")
    request = load_weights(network, request)
    preprocess = getattr(network, "preprocess", None) or {}
    transform = preprocess if callable(preprocess) else None
    with as_input_error(f"--encoder {request.spec}: invalid preprocess", Exception):
        own = View() if transform else make_view(**preprocess)
    return PhotoEncoder(request, own, network, device, transform)


def open_run(request: Request, device: torch.device | str, notify: Notify) -> PhotoEncoder:
    """The backbone of a finished run or of a model file."""
    path = Path(request.spec).expanduser()
    model = load_run(path)
    request = replace(request, spec=str(path.resolve()))
    return PhotoEncoder(request, view_of(model), model.backbone, device)


OPENERS = {"timm": open_timm, "onnx": open_onnx, "module": open_module, "run": open_run}
RUNS_CODE = ("module",)  # kinds that import code: only when a person names them, never from a file


def view_of(model: Encoder) -> View:
    """How images are prepared for a trained model; mirrored if it was trained on mirror images."""
    data, views = model.recipe.data, model.recipe.views
    return View(data.size, views.size, BICUBIC, data.mean, data.std, mirror=views.flip > 0)


def make_view(size: int = 224, interpolation: str = "bicubic", **given: Any) -> View:
    """A view at a size, by default with ImageNet's margin, mean and std."""
    return replace(View().at_size(int(size)), resample=RESAMPLE[interpolation], **given)


def load_weights(network: nn.Module, request: Request) -> Request:
    """Fill a network from a .safetensors or .pt file, without unpickling; skip extra tensors."""
    if request.weights is None:
        return request
    path = Path(request.weights).expanduser()
    if not os.path.isfile(path):
        raise InputError(f"--weights {request.weights}: no such file")
    try:
        if path.suffix == ".safetensors":
            found: Any = safetensors.torch.load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's own message recommends unpickling
        kind = type(error).__name__
        raise InputError(f"{path}: not a .safetensors file or plain state_dict ({kind})") from None
    with as_input_error(f"{path} is not a state_dict of this model", Exception):
        for key in ("state_dict", "model"):
            found = found[key] if isinstance(found.get(key), Mapping) else found
        tensors = {name.removeprefix("module."): t for name, t in found.items()}
        own = network.state_dict().keys()
        network.load_state_dict({name: tensors[name] for name in own if name in tensors})
    return replace(request, weights=str(path.resolve()))


def pool(output: Any) -> Tensor:
    """Output of a network as [N, F]: mean of a map [N, F, H, W], first of tokens [N, T, F]."""
    if isinstance(output, Mapping):
        known = [output[name] for name in OUTPUTS if name in output]
        output = [*known, *output.values()]
    if isinstance(output, list | tuple) and output:
        output = output[0]
    if not isinstance(output, Tensor):
        raise InputError(f"an encoder must return a tensor, got {type(output).__name__}")
    if output.ndim == 4:
        return output.mean((2, 3))
    return output[:, 0] if output.ndim == 3 else output
