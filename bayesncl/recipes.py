"""Recipes: everything that defines a training run, as frozen dataclasses, and the named recipes.

Each field carries a description, a range and choices. One check covers constructors, JSON files and
the command line; `bayesncl recipes NAME` prints the descriptions. Names of backbones, gates and
rectifiers are checked when the model is built.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import json
import os
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bayesncl.errors import InputError, as_input_error

MAX_SEED = 2**63 - 1  # the largest seed torch accepts
MAX_WIDTH = 2**20  # dimensions of a layer
MAX_IMAGES = 1_000_000  # generated images per split
STEMS, PRECISIONS = ("cifar", "imagenet"), ("auto", "float32", "bf16")
REVISABLE = (
    "epochs", "checkpoint_every", "keep_checkpoints", "log_every", "dynamics_every", "knn_every"
)  # fmt: skip

# Version 0.1 used British spelling. Its files stay readable, and the identity of a run in the
# ledger is still computed from that spelling.
FORMER = {"optimizer": "optimiser", "grayscale": "greyscale", "solarize": "solarise"}
CURRENT = {old: new for new, old in FORMER.items()}

Triple = tuple[float, float, float]
Pair = tuple[float, float]
SETTINGS: dict[str, Recipe] = {}  # recipe of each dataset with the method `bayesncl`; filled below


def option(
    default: Any, doc: str, *, choices: Collection[str] = (), low: float | None = None,
    high: float | None = None, added: str | None = None,
) -> Any:  # fmt: skip
    """Define a field with its description, its choices or its range.

    `added` is the version that introduced the field, if later than 0.1.0. At its default, such a
    field is left out of a run's identity, so the identities of older runs do not change.
    """
    rules = {"choices": choices, "low": low, "high": high}
    return field(default=default, metadata={"doc": doc, "added": added, "rules": rules})


share = functools.partial(option, low=0.0, high=1.0)  # a field between 0 and 1


class Part:
    """A part of a recipe. Converts and checks every field when it is built."""

    def __post_init__(self) -> None:
        part = next(name for name, cls in PARTS.items() if isinstance(self, cls))
        for name, f in FIELDS[part].items():
            value = getattr(self, name)
            if value is not None or f.default is not None:
                where, like = f"{part}.{name}", (0.0,) * 3 if f.default is None else f.default
                value = _convert(value, like, where)
                if value != f.default:
                    _check_range(value, where, **f.metadata["rules"])
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Data(Part):
    """Where the images come from."""

    name: str = option("scenes", "name of the dataset", choices=SETTINGS)
    root: str = option("", "folder or file with the images (not used by scenes and textures)")
    size: int = option(32, "side of the stored images in pixels", low=8, high=1024)
    holdout: float = option(0.1, "test share of sets without a test split", low=0.0, high=0.9)
    strict: bool = option(False, "fail on a broken image file instead of skipping it")
    train_images: int = option(6000, "scenes, textures: training images", low=2, high=MAX_IMAGES)
    test_images: int = option(2000, "scenes, textures: test images", low=2, high=MAX_IMAGES)
    tied: float = share(0.95, "scenes: share of training objects on their own background")
    seed: int = option(0, "seed of generated images or of the held-out split", low=0, high=MAX_SEED)
    mean: Triple = option((0.5, 0.5, 0.5), "channel means, for pixels in [0, 1]")
    std: Triple = option((0.25, 0.25, 0.25), "channel standard deviations", low=1e-9)
    paper_mean: Triple | None = option(None, "channel means of the published evaluation")
    paper_std: Triple | None = option(
        None, "channel standard deviations of the published evaluation", low=1e-9
    )


@dataclass(frozen=True)
class Views(Part):
    """How two views of an image are drawn."""

    size: int = option(32, "side of a view in pixels", low=8, high=1024)
    crop_scale: Pair = option((0.08, 1.0), "area of the crop, relative to the image", low=1e-9)
    crop_ratio: Pair = option((3 / 4, 4 / 3), "aspect ratio of the crop, log-uniform", low=1e-9)
    interpolation: str = option("bicubic", "resizing of the crop", choices=("bicubic", "bilinear"))
    jitter: float = share(0.8, "probability of color jitter")
    brightness: float = share(0.8, "brightness factor from [1 - b, 1 + b]")
    contrast: float = share(0.8, "contrast factor from [1 - c, 1 + c]")
    saturation: float = share(0.8, "saturation factor from [1 - s, 1 + s]")
    hue: float = option(0.2, "hue shift from [-h, h], in turns", low=0.0, high=0.5)
    grayscale: float = share(0.2, "probability of grayscale")
    blur: float = share(0.5, "probability of Gaussian blur")
    blur_sigma: Pair = option((0.1, 2.0), "standard deviation of the blur in pixels", low=1e-9)
    solarize: float = share(0.0, "probability of solarization at mid-gray")
    flip: float = share(0.5, "probability of a horizontal flip")


@dataclass(frozen=True)
class Model(Part):
    """The encoder: backbone h = f(x), projector z = p(h), rectifier."""

    backbone: str = option("resnet18", "resnet18, resnet50, small, medium, or timm:NAME")
    stem: str = option("cifar", "cifar: 3x3 kernel; imagenet: 7x7 and pooling", choices=STEMS)
    stem_padding: int = option(2, "padding of the cifar stem (2 in the paper)", low=0, high=3)
    hidden: int = option(2048, "hidden width of the projector", low=1, high=MAX_WIDTH)
    dim: int = option(256, "number of feature dimensions D", low=1, high=MAX_WIDTH)
    rectifier: str = option("rep_relu", "makes z non-negative; none: plain contrastive learning")
    layer_norm: bool = option(False, "parameter-free layer norm on z before the rectifier")
    top_k: int = option(0, "keep the k largest entries per row of z; 0 keeps all", low=0)
    head: str = option("projector", "projector, or another head by its name", added="0.3.0")


@dataclass(frozen=True)
class Gate(Part):
    """The Bernoulli gate per feature: q = sigmoid(g(h) / T)."""

    kind: str = option("ste", "ste, soft, gumbel (logistic noise), gumbel-paper, or none")
    depth: int = option(2, "layers of the gating head", low=1, high=3)
    hidden: int = option(0, "hidden width; 0 takes the projector's", low=0, high=MAX_WIDTH)
    prior: float = option(0.8, "prior probability rho that a gate is open", low=0.01, high=0.99)
    weight: float = option(3e-5, "weight lambda of the KL term", low=0.0)
    threshold: float = share(0.5, "a gate is open where q > threshold")
    temperature: float = option(1.0, "temperature T of the sigmoid", low=1e-3)
    lr: float = option(0.1, "learning rate of the gating head, not scaled with the batch", low=0.0)
    detach: bool = option(True, "stop gradients from the gating head to the backbone")
    input: str = option("h", "what the gating head reads", choices=("h", "z"), added="0.3.0")
    prior_kind: str = option(
        "fixed", "fixed: rho everywhere; prevalence: rho (1 - prevalence) per dimension",
        choices=("fixed", "prevalence"), added="0.3.0",
    )  # fmt: skip


@dataclass(frozen=True)
class Objective(Part):
    """The contrastive loss."""

    temperature: float = option(0.2, "temperature tau of InfoNCE", low=1e-3)
    block: int = option(0, "rows per block of the recomputed InfoNCE; 0 chooses by size", low=0)
    decoupled: bool = option(False, "no positive in InfoNCE's denominator", added="0.2.0")
    similarity: str = option(
        "dot", "dot, or ipw: weighted by inverse prevalence", choices=("dot", "ipw"), added="0.3.0"
    )


@dataclass(frozen=True)
class Optimizer(Part):
    """LARS with linear warm-up and cosine decay, stepped per iteration."""

    lr: float = option(0.4, "learning rate at batch 256; scaled by batch / 256", low=0.0)
    momentum: float = share(0.9, "momentum of LARS")
    weight_decay: float = option(1e-4, "weight decay (none on biases and norms)", low=0.0)
    eta: float = option(0.02, "trust coefficient of LARS", low=0.0)
    clip: bool = option(True, "cap the LARS rate at the group's learning rate")
    warmup_epochs: int = option(10, "epochs of linear warm-up", low=0)
    start_lr: float = option(3e-5, "learning rate at the first step", low=0.0)


@dataclass(frozen=True)
class Schedule(Part):
    """Length, batch size, seed, and how often to log and save."""

    epochs: int = option(200, "passes over the training images", low=1, high=1_000_000)
    batch: int = option(256, "images per step over all processes, two views each", low=2)
    seed: int = option(0, "seed of weights, order and views", low=0, high=MAX_SEED)
    checkpoint_every: int = option(10, "epochs between checkpoints", low=1)
    keep_checkpoints: int = option(2, "number of checkpoints to keep", low=1)
    log_every: int = option(50, "steps between lines of the log", low=1)
    dynamics_every: int = option(0, "epochs between records of gradient dynamics; 0: none", low=0)
    knn_every: int = option(
        0, "epochs between records of the kNN accuracy; 0: none", low=0, added="0.3.0"
    )
    precision: str = option("auto", "auto: bf16 on a GPU, float32 on a CPU", choices=PRECISIONS)
    compile: bool = option(True, "use custom kernels, torch.compile and CUDA graphs on a GPU")


@dataclass(frozen=True)
class Recipe:
    """Everything that defines a run."""

    name: str = "scenes-bayesncl"
    data: Data = field(default_factory=Data)
    views: Views = field(default_factory=Views)
    model: Model = field(default_factory=Model)
    gate: Gate = field(default_factory=Gate)
    objective: Objective = field(default_factory=Objective)
    optimizer: Optimizer = field(default_factory=Optimizer)
    run: Schedule = field(default_factory=Schedule)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\w[\w.-]{0,99}", _convert(self.name, "", "name"), re.ASCII):
            expected = "1 to 100 letters, digits, dots and dashes"  # run folders are named by it
            raise InputError(f"name: expected {expected}, got {self.name[:100]!r}")
        for name, cls in PARTS.items():
            if not isinstance(part := getattr(self, name), cls):
                raise InputError(f"{name}: expected a {cls.__name__}, got {type(part).__name__}")

    def to_dict(self) -> dict[str, Any]:
        """Parts and fields as plain values."""
        return dataclasses.asdict(self)

    def to_identity(self) -> dict[str, Any]:
        """`to_dict` as version 0.1.0 would write it, so that runs keep their identity."""
        tree = self.to_dict()
        for part, fields in FIELDS.items():
            for name, f in fields.items():
                if f.metadata["added"] and tree[part][name] == f.default:
                    del tree[part][name]
        return _respell(tree, FORMER)

    def to_json(self) -> str:
        """JSON that `recipe_from_json` reads."""
        return json.dumps(self.to_dict(), indent=2) + "\n"


PARTS: dict[str, Any] = {f.name: f.default_factory for f in dataclasses.fields(Recipe)[1:]}
FIELDS: dict[str, dict[str, Any]] = {
    part: {f.name: f for f in dataclasses.fields(cls)} for part, cls in PARTS.items()
}
TYPE_NAMES = {int: "a whole number", float: "a finite number", bool: "true or false", str: "text"}


def _convert(value: Any, like: Any, where: str) -> Any:
    """Return a value as the type of `like`, the default of its field, or raise InputError."""
    if isinstance(like, tuple):
        if isinstance(value, list | tuple) and len(value) == len(like):
            return tuple(_convert(item, 0.0, where) for item in value)
    elif isinstance(like, float):
        if type(value) in (int, float) and -1e30 < value < 1e30:
            return float(value)
    elif type(value) is type(like):
        return value
    expected = f"{len(like)} numbers" if isinstance(like, tuple) else TYPE_NAMES[type(like)]
    raise InputError(f"{where}: expected {expected}, got {repr(value)[:80]}")


def _check_range(value: Any, where: str, choices: Collection[str], low: Any, high: Any) -> None:
    """Raise InputError unless each number is in range, a pair is ordered and a word is a choice."""
    if choices:
        check_known(where, value, choices)
    numbers = value if isinstance(value, tuple) else (value,)
    for number in numbers:
        if low is not None and number < low:
            raise InputError(f"{where}: must be at least {low:g}, got {number:g}")
        if high is not None and number > high:
            raise InputError(f"{where}: must be at most {high}, got {number}")
    if len(numbers) == 2 and numbers[0] > numbers[1]:
        raise InputError(f"{where}: expected low <= high, got {numbers[0]:g}, {numbers[1]:g}")


def check_known(field: str, name: str, known: Collection[str]) -> None:
    """Raise InputError unless the value of a field is known."""
    if name not in known:
        raise InputError(f"{field}: unknown value {name!r}{did_you_mean(name, known)}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """End of an error message: the closest known word, or all of them."""
    known = list(known)
    close = difflib.get_close_matches(word, known, 1, 0.4)
    return f"; did you mean {close[0]}?" if close else f"; expected one of {', '.join(known)}"


def _respell(tree: Any, spelling: dict[str, str]) -> Any:
    if not isinstance(tree, dict):
        return tree
    return {spelling.get(key, key): _respell(value, spelling) for key, value in tree.items()}


def recipe_from_dict(tree: Any, source: str = "recipe") -> Recipe:
    """Build a recipe from plain data; missing fields get their defaults."""
    try:
        built = _respell(tree, CURRENT)
        _check_keys(built, ["name", *PARTS])
        for part in built.keys() - {"name"}:
            _check_keys(built[part], FIELDS[part], part)
            built[part] = PARTS[part](**built[part])
        return Recipe(**built)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None


def _check_keys(tree: Any, known: Collection[str], part: str = "") -> None:
    if not isinstance(tree, dict):
        raise InputError(f"{part or 'parts'}: expected an object, got {type(tree).__name__}")
    for key in tree:
        if key not in known:
            what = f"field {part}.{key}" if part else f"part {key}"
            raise InputError(f"unknown {what}{did_you_mean(key, known)}")


def recipe_from_json(text: str, source: str = "recipe") -> Recipe:
    with as_input_error(f"{source} is not JSON", ValueError, RecursionError):
        tree = json.loads(text)
    return recipe_from_dict(tree, source)


def read_recipe(path: Path) -> Recipe:
    """Read a recipe from a .json file."""
    with as_input_error(f"cannot read {path}", OSError, UnicodeDecodeError):
        return recipe_from_json(path.read_text(encoding="utf-8"), str(path))


def change(recipe: Recipe, changes: Iterable[str]) -> Recipe:
    """Apply changes written as ``part.field=value``, as on the command line."""
    for text in changes:
        path, equals, value = text.partition("=")
        part, dot, key = (CURRENT.get(word, word) for word in path.strip().partition("."))
        if not equals or not dot:
            raise InputError(f"--set takes part.field=value, got {text!r}")
        tree: dict[str, Any] = recipe.to_dict()
        fields = tree[part] if part in PARTS else {}  # recipe_from_dict rejects unknown names
        parsed: Any = value.strip()
        if not isinstance(fields.get(key), str):  # JSON, `none` or numbers with commas
            word = parsed.lower().replace("none", "null")
            with contextlib.suppress(ValueError):
                parsed = json.loads(f"[{word.strip('()[]')}]" if "," in word else word)
        recipe = recipe_from_dict(tree | {part: fields | {key: parsed}}, "--set")
    return recipe


def revise(recipe: Recipe, changes: Iterable[str]) -> Recipe:
    """Apply changes that a run may be resumed with; InputError for any other."""
    allowed = [f"run.{name}" for name in REVISABLE]
    for text in changes:
        if text.partition("=")[0].strip() not in allowed:
            raise InputError(f"--set {text}: resume can only change {', '.join(allowed)}")
    return change(recipe, changes)


def with_root(recipe: Recipe, root: str | None) -> Recipe:
    """Return the recipe with its images at `root`, made absolute; None changes nothing."""
    if root is None:
        return recipe
    return replace_fields(recipe, data={"root": os.path.realpath(os.path.expanduser(root))})


def replace_fields(recipe: Recipe, **parts: dict[str, Any]) -> Recipe:
    """Replace some fields: ``replace_fields(recipe, gate={"kind": "soft"})``."""
    new = {part: dataclasses.replace(getattr(recipe, part), **parts[part]) for part in parts}
    return dataclasses.replace(recipe, **new)


# For small images on a CPU: mild color jitter, a small encoder, rates for many small steps.
LIGHT: dict[str, dict[str, Any]] = {
    "views": {
        "crop_scale": (0.3, 1.0), "brightness": 0.4, "contrast": 0.4, "saturation": 0.4,
        "hue": 0.1, "blur": 0.0,
    },
    "model": {"backbone": "small", "hidden": 256, "dim": 64},
    "optimizer": {"lr": 1.0, "eta": 0.05, "warmup_epochs": 1},
}  # fmt: skip
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# The published evaluation used these for both CIFAR sets.
CIFAR_PAPER: dict[str, Any] = {
    "paper_mean": (0.4914, 0.4822, 0.4465), "paper_std": (0.247, 0.243, 0.261)
}  # fmt: skip
CIFAR10: dict[str, Any] = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.247, 0.2435, 0.2616)}
CIFAR100: dict[str, Any] = {"mean": (0.5071, 0.4865, 0.4409), "std": (0.2673, 0.2564, 0.2762)}

IMAGENET100 = Recipe(
    data=Data(size=256, mean=IMAGENET_MEAN, std=IMAGENET_STD),
    views=Views(size=224),
    model=Model(stem="imagenet", hidden=16384, dim=2048, rectifier="relu"),
    gate=Gate(prior=0.6, lr=0.0375),
    optimizer=Optimizer(lr=0.3),
    run=Schedule(epochs=100, batch=128),
)
FOLDER = Recipe(
    data=Data(size=128, mean=IMAGENET_MEAN, std=IMAGENET_STD),
    views=Views(size=112),
    model=Model(stem="imagenet"),
)
SMALL = replace_fields(Recipe(), **LIGHT, data={"train_images": 4000, "test_images": 2000})
SHORT = {"batch": 64, "checkpoint_every": 1, "log_every": 5}
SETTINGS |= {
    # Digits must not be flipped. The medium backbone and 60 epochs are for small objects.
    "scenes": replace_fields(
        SMALL,
        views={"flip": 0.0},
        model={"backbone": "medium"},
        run=SHORT | {"epochs": 60, "checkpoint_every": 2, "log_every": 20},
    ),
    # Takes a minute on two cores.
    "textures": replace_fields(SMALL, run=SHORT | {"epochs": 10}),
    "cifar10": Recipe(data=Data(**CIFAR10, **CIFAR_PAPER)),
    "cifar100": Recipe(data=Data(**CIFAR100, **CIFAR_PAPER)),
    "imagenet100": IMAGENET100,
    # A stand-in for ImageNet-100 that anyone can download.
    "tinyimagenet": replace_fields(IMAGENET100, data={"size": 64}, views={"size": 64}),
    "folder": FOLDER,
    "waterbirds": FOLDER,
    "arrays": replace_fields(
        FOLDER, data={"size": 32}, views={"size": 32}, model={"stem": "cifar"}
    ),
}

# Each method as a change of a dataset's settings.
METHODS: dict[str, Callable[[Recipe], Recipe]] = {
    "cl": lambda r: replace_fields(r, model={"rectifier": "none"}, gate={"kind": "none"}),
    "ncl": lambda r: replace_fields(r, gate={"kind": "none"}),
    "ncl-topk": lambda r: replace_fields(
        r, model={"top_k": round(r.gate.prior * r.model.dim)}, gate={"kind": "none"}
    ),
    # The baseline that motivates the paper's gates, which it does not run.
    "ncl-ipw": lambda r: replace_fields(
        r, gate={"kind": "none"}, objective={"similarity": "ipw"}
    ),
    "bayesncl": lambda r: r,
    "bayesncl-gs": lambda r: replace_fields(r, gate={"kind": "gumbel-paper"}),
    "bayesncl-soft": lambda r: replace_fields(r, gate={"kind": "soft"}),
    "bayesncl-nodetach": lambda r: replace_fields(r, gate={"detach": False}),
    # Not from the paper: an encoder to fit readable codes on.
    "prototypes": lambda r: replace_fields(
        METHODS["cl"](r),
        views={
            "crop_scale": (0.2, 1.0), "brightness": 0.4, "contrast": 0.4, "saturation": 0.2,
            "hue": 0.1, "blur": 0.0 if r.views.size < 64 else r.views.blur,
        },
        # padding 1 takes a fifth less time than the published 2
        model={"stem_padding": 1} if r.model.stem == "cifar" else {},
        objective={"decoupled": True},
        run={"epochs": r.run.epochs * 2},
    ),
}  # fmt: skip


def recipe_names() -> list[str]:
    return [f"{dataset}-{method}" for dataset in SETTINGS for method in METHODS]


def named(name: str) -> Recipe:
    """Return the recipe DATASET-METHOD; a plain DATASET means DATASET-bayesncl."""
    full = f"{name}-bayesncl" if name in SETTINGS else name
    for dataset, settings in SETTINGS.items():
        method = full.removeprefix(f"{dataset}-")
        if method != full and method in METHODS:
            recipe = replace_fields(METHODS[method](settings), data={"name": dataset})
            return dataclasses.replace(recipe, name=full)
    raise InputError(f"no recipe {name!r}{did_you_mean(name, [*SETTINGS, *recipe_names()])}")


def find_recipe(
    recipe: Recipe | str, changes: Iterable[str] | None = None, root: str | None = None
) -> Recipe:
    """Return a recipe, or the one of a name or .json file, with changes and images at `root`."""
    if isinstance(recipe, str):
        recipe = read_recipe(Path(recipe)) if recipe.endswith(".json") else named(recipe)
    return with_root(change(recipe, changes or ()), root)


def shorthands(
    recipe: Recipe, epochs: int | None = None, batch: int | None = None, size: int | None = None,
    backbone: str | None = None,
) -> list[str]:  # fmt: skip
    """Turn common options into changes; with `size`, stored images and views keep their ratio."""
    stored = None if size is None else round(size * recipe.data.size / recipe.views.size)
    values = {
        "run.epochs": epochs, "run.batch": batch, "views.size": size, "data.size": stored,
        "model.backbone": backbone,
    }  # fmt: skip
    return [f"{path}={value}" for path, value in values.items() if value is not None]
