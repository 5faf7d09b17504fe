"""What a run is: frozen dataclasses, one for each concern, that check themselves when they are built.

Every field carries its explanation, its range and its choices in its metadata: `bayesncl recipes NAME` prints the
first, one check serves constructors, files and the command line. The settings of a data set are in its module in
data/; the methods are below.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import re
import typing
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .data import DATASETS
from .errors import InputError, or_refuse
from .files import read_regular


def rectifiers() -> Collection[str]:
    """Names of `gates.RECTIFIERS`; asked for when a recipe is built, since they come with torch."""
    from .gates import RECTIFIERS

    return RECTIFIERS


def gate_kinds() -> Collection[str]:
    """``none`` and the names of `gates.GATES`."""
    from .gates import GATES

    return ("none", *GATES)


REVISABLE = ("epochs", "checkpoint_every", "keep_checkpoints", "log_every", "dynamics_every")  # of `run`, in resume
SEEDS = 2**63 - 1  # the largest seed torch takes
WIDEST = 2**20  # of a layer: more is a slip of the pen, or a file that wants our memory
MOST_MADE = 1_000_000  # likewise
MOST_BYTES = 16 << 20  # of a file

Triple = tuple[float, float, float]
Pair = tuple[float, float]


def _f(default: Any, doc: str, choices: Any = (), added: str | None = None, **bounds: Any) -> Any:
    """A field: its explanation, and what its value must be, which `_check_range` knows.

    `added` is the version that brought it, if later than 0.1.0: at its default it does not count in a run's identity,
    so that older runs keep theirs.
    """
    return field(default=default, metadata={"doc": doc, "added": added, "rules": {"choices": choices, **bounds}})


class Part:
    """A part of a recipe. Building one checks every field; whole numbers become floats, lists tuples, where due."""

    def __post_init__(self) -> None:
        kinds = _kinds(type(self))  # type: ignore[arg-type]  # classes can be hashed
        for f in dataclasses.fields(self):  # type: ignore[arg-type]  # its children are dataclasses
            where = f"{type(self).__name__.lower()}.{f.name}"
            value = _checked(getattr(self, f.name), kinds[f.name], where)
            if value != f.default:  # which needs no check, and so no import of what lists its choices
                _check_range(value, where, **f.metadata["rules"])
            object.__setattr__(self, f.name, value)


@dataclass(frozen=True)
class Data(Part):
    """Where the images come from."""

    name: str = _f("scenes", "which reader: one of the data sets", DATASETS)
    root: str = _f("", "folder or file that holds the images (unused by scenes and textures)")
    size: int = _f(32, "side of the stored images, pixels; others are resized and centre-cropped", least=8, most=1024)
    holdout: float = _f(0.1, "folder, shards, arrays: share kept for testing without a test split", least=0.0, most=0.9)
    strict: bool = _f(False, "folder, shards, imagenet100: a file that cannot be decoded is an error, not skipped")
    train_images: int = _f(6000, "scenes, textures: number of training images", least=2, most=MOST_MADE)
    test_images: int = _f(2000, "scenes, textures: number of test images", least=2, most=MOST_MADE)
    tied: float = _f(0.95, "scenes: share of training objects that stand on their own background", least=0.0, most=1.0)
    seed: int = _f(0, "seed of the images (scenes, textures) or of the held-out choice (others)", least=0, most=SEEDS)
    mean: Triple = _f((0.5, 0.5, 0.5), "per-channel mean subtracted from pixels in [0, 1]")
    std: Triple = _f((0.25, 0.25, 0.25), "per-channel standard deviation pixels are divided by", positive=True)
    paper_mean: Triple | None = _f(None, "mean in the published evaluation, where it differs from `mean`")
    paper_std: Triple | None = _f(None, "standard deviation there, where it differs from `std`", positive=True)


@dataclass(frozen=True)
class Views(Part):
    """How two views of an image are drawn."""

    size: int = _f(32, "side of a view, pixels", least=8, most=1024)
    crop_scale: Pair = _f((0.08, 1.0), "area of the random crop, as a share of the image", positive=True, rising=True)
    crop_ratio: Pair = _f((3 / 4, 4 / 3), "its aspect ratio, drawn log-uniformly", positive=True, rising=True)
    interpolation: str = _f("bicubic", "how the crop is resized", ("bicubic", "bilinear"))
    jitter: float = _f(0.8, "probability of the colour jitter", least=0.0, most=1.0)
    brightness: float = _f(0.8, "brightness factor is drawn from [1 - b, 1 + b]", least=0.0, most=1.0)
    contrast: float = _f(0.8, "contrast factor, likewise", least=0.0, most=1.0)
    saturation: float = _f(0.8, "saturation factor, likewise", least=0.0, most=1.0)
    hue: float = _f(0.2, "hue shift is drawn from [-h, h], in turns of the colour wheel", least=0.0, most=0.5)
    greyscale: float = _f(0.2, "probability of greyscale", least=0.0, most=1.0)
    blur: float = _f(0.5, "probability of Gaussian blur", least=0.0, most=1.0)
    blur_sigma: Pair = _f((0.1, 2.0), "standard deviation of the blur, pixels", positive=True, rising=True)
    solarise: float = _f(0.0, "probability of solarisation at mid-grey", least=0.0, most=1.0)
    flip: float = _f(0.5, "probability of a horizontal flip", least=0.0, most=1.0)


@dataclass(frozen=True)
class Model(Part):
    """The encoder: backbone h = f(x), projector z = p(h), rectifier."""

    backbone: str = _f("resnet18", "resnet18, resnet50, small, medium, or timm:NAME")
    stem: str = _f("cifar", "cifar: 3x3, stride 1; imagenet: 7x7, stride 2, and pooling", ("cifar", "imagenet"))
    stem_padding: int = _f(2, "padding of the cifar stem; the published experiments used 2", least=0, most=3)
    hidden: int = _f(2048, "hidden width of the projector", least=1, most=WIDEST)
    dim: int = _f(256, "D, the number of feature dimensions", least=1, most=WIDEST)
    rectifier: str = _f("rep_relu", "what makes z non-negative; none gives plain contrastive learning", rectifiers)
    layer_norm: bool = _f(False, "parameter-free layer norm on z before the rectifier")
    top_k: int = _f(0, "keep only the k largest entries of each row of z; 0 keeps all", least=0)


@dataclass(frozen=True)
class Gate(Part):
    """The Bernoulli gate per feature: q = sigmoid(g(h) / T)."""

    kind: str = _f("ste", "ste (straight-through), soft, gumbel (logistic noise), gumbel-paper, none", gate_kinds)
    depth: int = _f(2, "layers of the gating head", least=1, most=3)
    hidden: int = _f(0, "hidden width of the gating head; 0 takes the projector's", least=0, most=WIDEST)
    prior: float = _f(0.8, "rho, the prior probability that a gate is open", least=0.01, most=0.99)
    weight: float = _f(3e-5, "lambda, the weight of the KL term", least=0.0)
    threshold: float = _f(0.5, "a gate is open where q > threshold", least=0.0, most=1.0)
    temperature: float = _f(1.0, "T, the temperature of the sigmoid", least=1e-3)
    lr: float = _f(0.1, "learning rate of the gating head; not scaled with the batch", least=0.0)
    detach: bool = _f(True, "the gate sees h without sending gradients into the backbone")


@dataclass(frozen=True)
class Objective(Part):
    """The contrastive loss."""

    temperature: float = _f(0.2, "tau of InfoNCE", least=1e-3)
    block: int = _f(0, "rows per block of the recomputed InfoNCE; 0 chooses by size", least=0)
    decoupled: bool = _f(False, "leave the positive out of the sum that InfoNCE divides by", added="0.2.0")


@dataclass(frozen=True)
class Optimiser(Part):
    """LARS with linear warm-up and cosine decay, stepped per iteration."""

    lr: float = _f(0.4, "learning rate of backbone and projector at batch 256; scaled by batch / 256", least=0.0)
    momentum: float = _f(0.9, "momentum of LARS", least=0.0, most=1.0)
    weight_decay: float = _f(1e-4, "weight decay; biases and norms have none", least=0.0)
    eta: float = _f(0.02, "trust coefficient of LARS", least=0.0)
    clip: bool = _f(True, "the group's learning rate bounds the LARS rate from above")
    warmup_epochs: int = _f(10, "epochs of linear warm-up", least=0)
    start_lr: float = _f(3e-5, "learning rate at the first step", least=0.0)


@dataclass(frozen=True)
class Run(Part):
    """How long, how large, how often."""

    epochs: int = _f(200, "passes over the training images", least=1, most=1_000_000)
    batch: int = _f(256, "images per step over all processes; each gives two views", least=2)
    seed: int = _f(0, "seed of weights, order and views", least=0, most=SEEDS)
    checkpoint_every: int = _f(10, "epochs between checkpoints", least=1)
    keep_checkpoints: int = _f(2, "how many of the newest checkpoints stay on disk", least=1)
    log_every: int = _f(50, "steps between progress reports", least=1)
    dynamics_every: int = _f(0, "epochs between records of the gradient dynamics; 0 records none", least=0)
    precision: str = _f("auto", "auto takes bf16 on a GPU and float32 on a CPU", ("auto", "float32", "bf16"))
    compile: bool = _f(True, "on a GPU: take kernels and torch's compiler, and with one process replay a CUDA graph")


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

    def __post_init__(self) -> None:
        # the name becomes that of a folder
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", _checked(self.name, str, "name")):
            raise InputError(f"name: expected up to 100 letters, digits, dots and dashes, got {self.name[:80]!r}")
        for name, cls in PARTS.items():
            if not isinstance(getattr(self, name), cls):
                raise InputError(f"{name} must be a {cls.__name__}, got {type(getattr(self, name)).__name__}")

    def to_dict(self) -> dict[str, Any]:
        """Parts and fields as plain values."""
        return dataclasses.asdict(self)

    def to_identity(self) -> dict[str, Any]:
        """As `to_dict`, without the fields added since 0.1.0 that are at their default: what tells runs apart."""
        tree = self.to_dict()
        for part in PARTS:
            for f in dataclasses.fields(getattr(self, part)):
                if f.metadata["added"] and tree[part][f.name] == f.default:
                    del tree[part][f.name]
        return tree

    def to_json(self) -> str:
        """What `recipe_from_json` reads."""
        return json.dumps(self.to_dict(), indent=2) + "\n"


PARTS: dict[str, Any] = {f.name: f.default_factory for f in dataclasses.fields(Recipe) if f.name != "name"}


@functools.cache
def _kinds(part: Any) -> dict[str, Any]:
    return typing.get_type_hints(part)


def _checked(value: Any, kind: Any, where: str) -> Any:
    """A value of the right type (an int may stand for a float, a list for a tuple), or InputError."""
    if type(None) in (options := typing.get_args(kind)):
        return None if value is None else _checked(value, options[0], where)
    if typing.get_origin(kind) is tuple:
        if isinstance(value, list | tuple) and len(value) == len(options):
            return tuple(_checked(item, float, where) for item in value)
        wanted = f"{len(options)} numbers"
    elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        if -1e30 < value < 1e30:
            return float(value)
        wanted = "a finite number"
    elif type(value) is kind and not (kind is str and "\0" in value):
        return value
    else:
        wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[kind]
    raise InputError(f"{where}: expected {wanted}, got {repr(value)[:80]}")


def _check_range(
    value: Any, where: str, *, choices: Collection[str] | Callable[[], Collection[str]], least: float | None = None,
    most: float | None = None, positive: bool = False, rising: bool = False,
) -> None:  # fmt: skip
    """Choices are words, or a function that lists them; bounds hold for each of several numbers, `rising` for two."""
    if value is None:
        return
    known = choices() if callable(choices) else choices
    if known and value not in known:
        raise InputError(f"{where}: no {value[:80]!r}{nearest(value, known)}")
    for number in value if isinstance(value, tuple) else (value,):
        if least is not None and number < least:
            raise InputError(f"{where}: must be at least {least}, got {number}")
        if most is not None and number > most:
            raise InputError(f"{where}: must be at most {most}, got {number}")
        if positive and number <= 0:
            raise InputError(f"{where}: must be positive, got {number}")
    if rising and value[0] > value[1]:
        raise InputError(f"{where}: must be 0 < low <= high, got {value[0]}, {value[1]}")


def _parsed(text: str, kind: Any) -> Any:
    """Text from a command line as the type a field has; what cannot be that stays text, which the field refuses."""
    if kind is str:
        return text
    if kind is bool:
        words = {True: ("true", "yes", "1", "on"), False: ("false", "no", "0", "off")}
        return next((value for value, known in words.items() if text.lower() in known), text)
    if text.lower() == "none" and type(None) in typing.get_args(kind):
        return None
    try:
        return kind(text) if kind in (int, float) else tuple(float(item) for item in text.strip("()[]").split(","))
    except ValueError:
        return text


def nearest(word: str, known: Iterable[str]) -> str:
    """'; did you mean X?' for the nearest known word, or the list of them."""
    known = list(known)
    close = difflib.get_close_matches(word, known, 1, 0.4)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known)}"


def recipe_from_dict(tree: Any, source: str = "recipe") -> Recipe:
    """Build a recipe from plain data; `source` names it in error messages, missing fields take their defaults."""
    try:
        if not isinstance(tree, dict):
            raise InputError(f"a recipe is an object of parts, got {type(tree).__name__}")
        return Recipe(**{part: values if part == "name" else _part(part, values) for part, values in tree.items()})
    except InputError as error:
        raise InputError(f"{source}: {error}") from None


def _part(part: Any, values: Any) -> Any:
    if part not in PARTS:
        raise InputError(f"no part {str(part)[:80]!r}{nearest(str(part), PARTS)}")
    if not isinstance(values, dict):
        raise InputError(f"{part} must be an object of fields, got {type(values).__name__}")
    known = _kinds(PARTS[part])
    for key in values:
        if key not in known:
            raise InputError(f"no field {part}.{str(key)[:80]}{nearest(str(key), known)}")
    return PARTS[part](**values)


def recipe_from_json(text: str, source: str = "recipe") -> Recipe:
    """Read a recipe from JSON text; `source` names it in error messages."""
    with or_refuse(f"{source} is not JSON", ValueError, RecursionError):
        tree = json.loads(text)
    return recipe_from_dict(tree, source)


def read_recipe(path: Path) -> Recipe:
    """The recipe in a .json file."""
    with or_refuse(f"cannot read {path}", OSError, UnicodeDecodeError):
        return recipe_from_json(read_regular(path, MOST_BYTES).decode(), str(path))


def change(recipe: Recipe, changes: Iterable[str]) -> Recipe:
    """Apply changes written as ``part.field=value``, as on the command line."""
    for text in changes:
        path, equals, value = text.partition("=")
        part, dot, key = path.strip().partition(".")
        if not equals or not dot:
            raise InputError(f"--set takes part.field=value, got {text[:80]!r}")
        kind = _kinds(PARTS[part]).get(key) if part in PARTS else None
        tree = recipe.to_dict()
        known = tree[part] if part in PARTS else {}
        tree[part] = known | {key: _parsed(value.strip(), kind)}  # an unknown name is refused below
        recipe = recipe_from_dict(tree, f"--set {text[:80]}")
    return recipe


def revise(recipe: Recipe, changes: Iterable[str]) -> Recipe:
    """Changes that a run may be resumed with; InputError for others, which make another run."""
    allowed = [f"run.{name}" for name in REVISABLE]
    for text in changes:
        if text.partition("=")[0].strip() not in allowed:
            raise InputError(f"--set {text[:80]}: resume changes only {', '.join(allowed)}; train a new run for others")
    return change(recipe, changes)


def with_root(recipe: Recipe, root: str | None) -> Recipe:
    """The recipe with its images at another place; None leaves them where they are."""
    if root is None:
        return recipe
    with or_refuse(f"--data {root}", RuntimeError, OSError):  # no such user, links in a circle
        place = str(Path(root).expanduser().resolve())
    return replace_fields(recipe, data={"root": place})


def replace_fields(recipe: Recipe, **parts: dict[str, Any]) -> Recipe:
    """The recipe with other values of some fields: `replace_fields(recipe, gate={"kind": "soft"})`."""
    new = {part: dataclasses.replace(getattr(recipe, part), **fields) for part, fields in parts.items()}
    return dataclasses.replace(recipe, **new)


# For small images on a CPU: colours that stay what they are, a small encoder, rates for many small steps.
LIGHT: dict[str, dict[str, Any]] = {
    "views": {"crop_scale": (0.3, 1.0), "brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1, "blur": 0.0},
    "model": {"backbone": "small", "hidden": 256, "dim": 64},
    "optimiser": {"lr": 1.0, "eta": 0.05, "warmup_epochs": 1},
}
SOFT: dict[str, Any] = {"crop_scale": (0.2, 1.0), "brightness": 0.4, "contrast": 0.4, "saturation": 0.2, "hue": 0.1}

# What each method makes of a data set's settings, which are those of `bayesncl`.
METHODS: dict[str, Callable[[Recipe], Recipe]] = {
    "cl": lambda recipe: replace_fields(recipe, model={"rectifier": "none"}, gate={"kind": "none"}),
    "ncl": lambda recipe: replace_fields(recipe, gate={"kind": "none"}),
    "ncl-topk": lambda recipe: replace_fields(
        recipe, model={"top_k": round(recipe.gate.prior * recipe.model.dim)}, gate={"kind": "none"}
    ),
    "bayesncl": lambda recipe: recipe,
    "bayesncl-gs": lambda recipe: replace_fields(recipe, gate={"kind": "gumbel-paper"}),
    "bayesncl-soft": lambda recipe: replace_fields(recipe, gate={"kind": "soft"}),
    "bayesncl-nodetach": lambda recipe: replace_fields(recipe, gate={"detach": False}),
    "prototypes": lambda recipe: replace_fields(  # not of the paper: an encoder to fit readable codes on
        METHODS["cl"](recipe),
        views=SOFT | {"blur": 0.0 if recipe.views.size < 64 else recipe.views.blur},  # which hides all of 32 pixels
        model={"stem_padding": 1} if recipe.model.stem == "cifar" else {},  # a fifth less work than the published 2
        objective={"decoupled": True},
        run={"epochs": recipe.run.epochs * 2},
    ),
}


def recipe_names() -> list[str]:
    """Every DATASET-METHOD."""
    return [f"{dataset}-{method}" for dataset in DATASETS for method in METHODS]


def named(name: str) -> Recipe:
    """The recipe DATASET-METHOD; a plain DATASET means DATASET-bayesncl."""
    full = f"{name}-bayesncl" if name in DATASETS else name
    for dataset in DATASETS:
        method = full.removeprefix(f"{dataset}-")
        if method != full and method in METHODS:
            recipe = replace_fields(METHODS[method](DATASETS[dataset].settings), data={"name": dataset})
            return dataclasses.replace(recipe, name=full)
    raise InputError(f"no recipe {name[:80]!r}{nearest(name, [*DATASETS, *recipe_names()])}")


def find_recipe(name: str, changes: Iterable[str] | None = None, root: str | None = None) -> Recipe:
    """A recipe by name or from a .json file, with changes and with its images at `root`."""
    recipe = read_recipe(Path(name)) if name.endswith(".json") else named(name)
    return with_root(change(recipe, changes or ()), root)


def shorthands(
    recipe: Recipe, epochs: int | None = None, batch: int | None = None, size: int | None = None,
    backbone: str | None = None,
) -> list[str]:  # fmt: skip
    """Changes of the fields that people change most; `size` is that of the views, stored images keep their ratio."""
    stored = None if size is None else round(size * recipe.data.size / recipe.views.size)
    values = {
        "run.epochs": epochs, "run.batch": batch, "views.size": size, "data.size": stored, "model.backbone": backbone
    }  # fmt: skip
    return [f"{path}={value}" for path, value in values.items() if value is not None]
