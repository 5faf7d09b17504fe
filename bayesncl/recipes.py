"""What a run is: frozen dataclasses, one per concern, and the named recipes of the paper.

Every field carries its explanation in its metadata, so that `bayesncl recipes NAME` can print it.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import InputError

DATASETS = ("scenes", "textures", "cifar10", "cifar100", "imagenet100", "folder", "waterbirds", "shards", "arrays")
METHODS = ("cl", "ncl", "ncl-topk", "bayesncl", "bayesncl-gs", "bayesncl-soft", "bayesncl-nodetach")
RECTIFIERS = ("none", "relu", "rep_relu", "gelu", "softplus", "sigmoid", "exp")
GATES = ("none", "ste", "soft", "gumbel", "gumbel-paper")

CIFAR10_STATS = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
CIFAR10_EVAL_STATS = ((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261))
CIFAR100_STATS = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
IMAGENET_STATS = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

SEEDS = 2**63 - 1  # the largest seed torch takes
WIDEST = 2**20  # of a layer: more is a slip of the pen, or a file that wants our memory

Triple = tuple[float, float, float]
Pair = tuple[float, float]


def _f(
    default: Any, doc: str, choices: tuple[str, ...] = (), least: float | None = None, most: float | None = None
) -> Any:
    return field(default=default, metadata={"doc": doc, "choices": choices, "least": least, "most": most})


@dataclass(frozen=True)
class Data:
    """Where the images come from."""

    name: str = _f("scenes", "which reader: one of the data sets", DATASETS)
    root: str = _f("", "folder or file that holds the images (unused by scenes and textures)")
    size: int = _f(
        32,
        "side of the stored square images, pixels; larger ones are resized (short side) and centre-cropped",
        least=8,
        most=1024,
    )
    holdout: float = _f(
        0.1,
        "folder, shards, arrays: share of the images kept for testing where no test split exists",
        least=0.0,
        most=0.9,
    )
    strict: bool = _f(False, "folder: a file that cannot be decoded is an error instead of being skipped")
    train_images: int = _f(6000, "scenes, textures: number of training images", least=2)
    test_images: int = _f(2000, "scenes, textures: number of test images", least=2)
    tied: float = _f(0.95, "scenes: share of training objects that stand on their own background", least=0.0, most=1.0)
    seed: int = _f(0, "seed of the images (scenes, textures) or of the held-out choice (others)", least=0, most=SEEDS)
    mean: Triple = _f((0.5, 0.5, 0.5), "per-channel mean subtracted from pixels in [0, 1]")
    std: Triple = _f((0.25, 0.25, 0.25), "per-channel standard deviation pixels are divided by")
    paper_mean: Triple | None = _f(None, "mean the published evaluation used, where it differs from `mean`")
    paper_std: Triple | None = _f(None, "standard deviation the published evaluation used, where it differs from `std`")


@dataclass(frozen=True)
class Views:
    """How two views of an image are drawn."""

    size: int = _f(32, "side of a view, pixels", least=8, most=1024)
    crop_scale: Pair = _f((0.08, 1.0), "area of the random crop, as a share of the image")
    crop_ratio: Pair = _f((3 / 4, 4 / 3), "aspect ratio of the random crop, drawn log-uniformly")
    interpolation: str = _f("bicubic", "how the crop is resized", ("bicubic", "bilinear"))
    jitter: float = _f(0.8, "probability of the colour jitter", least=0.0, most=1.0)
    brightness: float = _f(0.8, "brightness factor is drawn from [1 - b, 1 + b]", least=0.0, most=1.0)
    contrast: float = _f(0.8, "contrast factor, likewise", least=0.0, most=1.0)
    saturation: float = _f(0.8, "saturation factor, likewise", least=0.0, most=1.0)
    hue: float = _f(0.2, "hue shift is drawn from [-h, h], in turns of the colour wheel", least=0.0, most=0.5)
    greyscale: float = _f(0.2, "probability of greyscale", least=0.0, most=1.0)
    blur: float = _f(0.5, "probability of Gaussian blur", least=0.0, most=1.0)
    blur_sigma: Pair = _f((0.1, 2.0), "standard deviation of the blur, pixels")
    solarise: float = _f(0.0, "probability of solarisation at mid-grey", least=0.0, most=1.0)
    flip: float = _f(0.5, "probability of a horizontal flip", least=0.0, most=1.0)


@dataclass(frozen=True)
class Model:
    """The encoder: backbone h = f(x), projector z = p(h), rectifier."""

    backbone: str = _f("resnet18", "resnet18, resnet50, small, medium, or timm:NAME")
    stem: str = _f(
        "cifar", "cifar: 3x3 stride 1, no pooling; imagenet: 7x7 stride 2 and pooling", ("cifar", "imagenet")
    )
    stem_padding: int = _f(2, "padding of the cifar stem; the published experiments used 2", least=0, most=3)
    hidden: int = _f(2048, "hidden width of the projector", least=1, most=WIDEST)
    dim: int = _f(256, "D, the number of feature dimensions", least=1, most=WIDEST)
    rectifier: str = _f("rep_relu", "what makes z non-negative; none gives plain contrastive learning", RECTIFIERS)
    layer_norm: bool = _f(False, "parameter-free layer norm on z before the rectifier")
    top_k: int = _f(0, "keep only the k largest entries of each row of z; 0 keeps all", least=0)


@dataclass(frozen=True)
class Gate:
    """The Bernoulli gate per feature: q = sigmoid(g(h) / T)."""

    kind: str = _f(
        "ste", "none, ste (straight-through), soft, gumbel (logistic noise), gumbel-paper (one Gumbel sample)", GATES
    )
    depth: int = _f(2, "layers of the gating head", least=1, most=3)
    hidden: int = _f(0, "hidden width of the gating head; 0 takes the projector's", least=0, most=WIDEST)
    prior: float = _f(0.8, "rho, the prior probability that a gate is open", least=0.01, most=0.99)
    weight: float = _f(3e-5, "lambda, the weight of the KL term", least=0.0)
    threshold: float = _f(0.5, "a gate is open where q > threshold", least=0.0, most=1.0)
    temperature: float = _f(1.0, "T, the temperature of the sigmoid", least=1e-3)
    lr: float = _f(0.1, "learning rate of the gating head; not scaled with the batch", least=0.0)
    detach: bool = _f(True, "the gate sees h without sending gradients into the backbone")


@dataclass(frozen=True)
class Objective:
    """The contrastive loss."""

    temperature: float = _f(0.2, "tau of InfoNCE", least=1e-3)
    block: int = _f(0, "rows per block of the recomputed InfoNCE; 0 chooses by size", least=0)


@dataclass(frozen=True)
class Optimiser:
    """LARS with linear warm-up and cosine decay, stepped per iteration."""

    lr: float = _f(0.4, "learning rate of backbone and projector at batch 256; scaled by batch / 256", least=0.0)
    momentum: float = _f(0.9, "momentum of LARS", least=0.0, most=1.0)
    weight_decay: float = _f(1e-4, "weight decay; biases and norms have none", least=0.0)
    eta: float = _f(0.02, "trust coefficient of LARS", least=0.0)
    clip: bool = _f(True, "the group's learning rate bounds the LARS rate from above")
    warmup_epochs: int = _f(10, "epochs of linear warm-up", least=0)
    start_lr: float = _f(3e-5, "learning rate at the first step", least=0.0)


@dataclass(frozen=True)
class Run:
    """How long, how large, how often."""

    epochs: int = _f(200, "passes over the training images", least=1, most=1_000_000)
    batch: int = _f(256, "images per step over all processes; each gives two views", least=2)
    seed: int = _f(0, "seed of weights, order and views", least=0, most=SEEDS)
    checkpoint_every: int = _f(10, "epochs between checkpoints", least=1)
    keep_checkpoints: int = _f(2, "how many of the newest checkpoints stay on disk", least=1)
    log_every: int = _f(50, "steps between progress reports", least=1)
    dynamics_every: int = _f(0, "epochs between records of the gradient dynamics; 0 records none", least=0)
    precision: str = _f("auto", "auto takes bf16 on a GPU and float32 on a CPU", ("auto", "float32", "bf16"))
    compile: bool = _f(True, "on a GPU: compile the step, and with one process replay it as a CUDA graph")


@dataclass(frozen=True)
class Recipe:
    """A whole run."""

    name: str = "scenes-bayesncl"
    data: Data = field(default_factory=Data)
    views: Views = field(default_factory=Views)
    model: Model = field(default_factory=Model)
    gate: Gate = field(default_factory=Gate)
    objective: Objective = field(default_factory=Objective)
    optimiser: Optimiser = field(default_factory=Optimiser)
    run: Run = field(default_factory=Run)

    def to_dict(self) -> dict[str, Any]:
        """Parts and fields as plain values."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """What `recipe_from_json` reads."""
        return json.dumps(self.to_dict(), indent=2) + "\n"


PARTS: dict[str, Any] = {f.name: f.default_factory for f in dataclasses.fields(Recipe) if f.name != "name"}


def explain(part: str) -> list[tuple[str, str]]:
    """(field, explanation) for every field of a part such as ``gate``."""
    return [(f.name, f.metadata["doc"]) for f in dataclasses.fields(PARTS[part])]


def nearest(word: str, known: typing.Iterable[str]) -> str:
    """'; did you mean X?' for the nearest known word, or the list of them."""
    known = list(known)
    close = difflib.get_close_matches(word, known, 1, 0.4)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known)}"


def recipe_from_dict(tree: Any, source: str = "recipe") -> Recipe:
    """Build a recipe from plain data; every name, type and range is checked, missing fields take their defaults."""
    if not isinstance(tree, dict):
        raise InputError(f"{source}: a recipe is an object of parts, got {type(tree).__name__}")
    parts: dict[str, Any] = {}
    for part, values in tree.items():
        if part == "name":
            parts["name"] = _checked_name(_checked(values, str, f"{source}: name"), source)
            continue
        if part not in PARTS:
            raise InputError(f"{source}: no part {part!r}{nearest(str(part), PARTS)}")
        if not isinstance(values, dict):
            raise InputError(f"{source}: {part} must be an object of fields, got {type(values).__name__}")
        cls = PARTS[part]
        hints = typing.get_type_hints(cls)
        for key, value in values.items():
            if key not in hints:
                raise InputError(f"{source}: no field {part}.{key}{nearest(str(key), hints)}")
            values = {**values, key: _checked(value, hints[key], f"{source}: {part}.{key}")}
        parts[part] = cls(**values)
        _check_ranges(parts[part], f"{source}: {part}")
    return Recipe(**parts)


def _checked_name(name: str, source: str) -> str:
    """A recipe's name becomes that of a folder, so it must be one."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", name):
        raise InputError(f"{source}: name: expected up to 100 letters, digits, dots and dashes, got {name[:80]!r}")
    return name


def recipe_from_json(text: str, source: str = "recipe") -> Recipe:
    """Read a recipe from JSON text; `source` names it in error messages."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source} is not JSON: {error}") from None
    return recipe_from_dict(tree, source)


def change(recipe: Recipe, changes: typing.Iterable[str]) -> Recipe:
    """Apply changes written as ``part.field=value``, as on the command line."""
    tree = recipe.to_dict()
    for text in changes:
        path, equals, value = text.partition("=")
        part, dot, key = path.strip().partition(".")
        if not equals or not dot:
            raise InputError(f"--set takes part.field=value, got {text!r}")
        if part not in PARTS:
            raise InputError(f"--set {text}: no part {part!r}{nearest(part, PARTS)}")
        hints = typing.get_type_hints(PARTS[part])
        if key not in hints:
            raise InputError(f"--set {text}: no field {part}.{key}{nearest(key, hints)}")
        tree[part][key] = _parsed(value.strip(), hints[key], f"--set {text}")
    return recipe_from_dict(tree, "--set" if changes else recipe.name)


def with_root(recipe: Recipe, root: str | None) -> Recipe:
    """The recipe with its images at another place; None leaves them where they are."""
    if root is None:
        return recipe
    try:
        place = str(Path(root).expanduser().resolve())
    except (RuntimeError, OSError) as error:  # no such user, links in a circle
        raise InputError(f"--data {root}: {error}") from None
    return dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, root=place))


def _parsed(text: str, kind: Any, where: str) -> Any:
    """Text from a command line as the type a field has."""
    if kind is str:
        return text
    if kind is bool:
        if text.lower() in ("true", "yes", "1", "on"):
            return True
        if text.lower() in ("false", "no", "0", "off"):
            return False
        raise InputError(f"{where}: expected true or false, got {text!r}")
    if text.lower() == "none" and _is_optional(kind):
        return None
    try:
        if kind is int:
            return int(text)
        if kind is float:
            return float(text)
        return tuple(float(item) for item in text.strip("()[]").split(","))
    except ValueError:
        raise InputError(f"{where[:200]}: expected {_named(kind)}, got {text[:80]!r}") from None


def _checked(value: Any, kind: Any, where: str) -> Any:
    """A value of the right type (an int may stand for a float, a list for a tuple), or InputError."""
    if value is None and _is_optional(kind):
        return None
    if _is_optional(kind):
        kind = next(k for k in typing.get_args(kind) if k is not type(None))
    wanted = _named(kind)
    if typing.get_origin(kind) is tuple:
        n = len(typing.get_args(kind))
        if not isinstance(value, list | tuple) or len(value) != n:
            raise InputError(f"{where}: expected {wanted}, got {str(value)[:80]!r}")
        return tuple(_checked(item, float, where) for item in value)
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not -1e30 < value < 1e30:
            raise InputError(f"{where}: expected a finite number, got {value!r}")
        return float(value)
    if type(value) is not kind:
        raise InputError(f"{where}: expected {wanted}, got {str(value)[:80]!r}")
    if kind is str and "\0" in value:
        raise InputError(f"{where}: expected text without NUL, got {value[:80]!r}")
    return value


def _is_optional(kind: Any) -> bool:
    return isinstance(kind, types.UnionType) and type(None) in typing.get_args(kind)


def _named(kind: Any) -> str:
    if typing.get_origin(kind) is tuple:
        return f"{len(typing.get_args(kind))} numbers"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}.get(kind, "numbers or none")


def _check_ranges(part: Any, where: str) -> None:
    for f in dataclasses.fields(part):
        value, choices, least, most = (
            getattr(part, f.name),
            f.metadata["choices"],
            f.metadata["least"],
            f.metadata["most"],
        )
        if choices and value not in choices:
            raise InputError(f"{where}.{f.name}: no {value!r}{nearest(value, choices)}")
        if least is not None and value < least:
            raise InputError(f"{where}.{f.name}: must be at least {least}, got {value}")
        if most is not None and value > most:
            raise InputError(f"{where}.{f.name}: must be at most {most}, got {value}")
    for name in ("std", "paper_std"):
        std = getattr(part, name, None)
        if std is not None and min(std) <= 0:
            raise InputError(f"{where}.{name}: must be positive, got {std}")
    for name in ("crop_scale", "crop_ratio", "blur_sigma"):
        low, high = getattr(part, name, (1.0, 1.0))
        if not 0 < low <= high:
            raise InputError(f"{where}.{name}: must be 0 < low <= high, got {low}, {high}")


def _datasets() -> dict[str, Recipe]:
    """The recipe of each data set with the method `bayesncl`."""
    cifar = Recipe(run=Run(epochs=200, batch=256))
    # Sized for a minute on two cores: many small steps, and colours that stay what they are.
    textures = Recipe(
        data=Data(name="textures", train_images=4000, test_images=2000),
        views=Views(crop_scale=(0.3, 1.0), brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, blur=0.0),
        model=Model(backbone="small", hidden=256, dim=64),
        optimiser=Optimiser(lr=1.0, eta=0.05, warmup_epochs=1),
        run=Run(epochs=10, batch=64, checkpoint_every=1, log_every=5),
    )
    # Digits are not flipped. The finer backbone and the longer training are for what is small in a scene.
    scenes = dataclasses.replace(
        textures,
        data=dataclasses.replace(textures.data, name="scenes"),
        views=dataclasses.replace(textures.views, flip=0.0),
        model=dataclasses.replace(textures.model, backbone="medium"),
        run=dataclasses.replace(textures.run, epochs=60, checkpoint_every=2, log_every=20),
    )
    photos = dataclasses.replace(
        cifar,
        data=Data(name="folder", size=128, mean=IMAGENET_STATS[0], std=IMAGENET_STATS[1]),
        views=Views(size=112),
        model=Model(stem="imagenet"),
    )
    return {
        "scenes": scenes,
        "textures": textures,
        "cifar10": dataclasses.replace(
            cifar,
            data=Data(
                name="cifar10",
                mean=CIFAR10_STATS[0],
                std=CIFAR10_STATS[1],
                paper_mean=CIFAR10_EVAL_STATS[0],
                paper_std=CIFAR10_EVAL_STATS[1],
            ),
        ),
        "cifar100": dataclasses.replace(
            cifar,
            data=Data(
                name="cifar100",
                mean=CIFAR100_STATS[0],
                std=CIFAR100_STATS[1],
                paper_mean=CIFAR10_EVAL_STATS[0],
                paper_std=CIFAR10_EVAL_STATS[1],
            ),
        ),
        "imagenet100": dataclasses.replace(
            cifar,
            data=Data(name="imagenet100", size=256, mean=IMAGENET_STATS[0], std=IMAGENET_STATS[1]),
            views=Views(size=224),
            model=Model(stem="imagenet", hidden=16384, dim=2048, rectifier="relu"),
            gate=Gate(prior=0.6, lr=0.0375),
            optimiser=Optimiser(lr=0.3),
            run=Run(epochs=100, batch=128),
        ),
        "folder": photos,
        **{
            name: dataclasses.replace(
                photos, data=dataclasses.replace(photos.data, name=name, size=size), views=Views(size=view)
            )
            for name, size, view in (("waterbirds", 128, 112), ("shards", 256, 224))
        },
        "arrays": dataclasses.replace(
            photos,
            data=dataclasses.replace(photos.data, name="arrays", size=32),
            views=Views(size=32),
            model=dataclasses.replace(photos.model, stem="cifar"),
        ),
    }


def _with_method(recipe: Recipe, method: str) -> Recipe:
    """The same run with another method of the paper."""
    model, gate = recipe.model, recipe.gate
    off = dataclasses.replace(gate, kind="none")
    match method:
        case "cl":
            model, gate = dataclasses.replace(model, rectifier="none"), off
        case "ncl":
            gate = off
        case "ncl-topk":
            model, gate = dataclasses.replace(model, top_k=round(gate.prior * model.dim)), off
        case "bayesncl-gs":
            gate = dataclasses.replace(gate, kind="gumbel-paper")
        case "bayesncl-soft":
            gate = dataclasses.replace(gate, kind="soft")
        case "bayesncl-nodetach":
            gate = dataclasses.replace(gate, detach=False)
    return dataclasses.replace(recipe, name=f"{recipe.data.name}-{method}", model=model, gate=gate)


RECIPES = {
    f"{dataset}-{method}": _with_method(recipe, method) for dataset, recipe in _datasets().items() for method in METHODS
}


def named(name: str) -> Recipe:
    """The recipe DATASET-METHOD; a plain DATASET means DATASET-bayesncl."""
    full = f"{name}-bayesncl" if name in DATASETS else name
    if full not in RECIPES:
        raise InputError(f"no recipe {name!r}{nearest(name, [*DATASETS, *RECIPES])}")
    return RECIPES[full]
