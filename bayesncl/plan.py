"""Before a run: what the images and the machine allow, said in a line; after it: whether the features differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from . import distributed
from .cost import cost, multiply_adds, parts_of, time_steps
from .data import DATASETS, load
from .data.decode import sizes_in_words
from .data.folder import split_folders
from .data.images import Images, spread_evenly
from .features import centre_crop
from .model import Encoder, build_model
from .progress import Display, plural, words
from .recipes import LIGHT, Recipe, change, find_recipe, replace_fields, shorthands
from .train import fit_batch, short_schedule

FEW = 5000  # images: fewer teach an encoder little that a pretrained one does not know
SEEN = 100_000  # images that a run without a GPU looks at, epochs times images: minutes on two cores
PACE, PACE_LARGE = 3.0e14, 1.7e14  # operations a second that a step sustains on an H200, at 32 px and at 224 px
OPERATIONS = 6  # two for a multiply-add, in the forward pass and twice in the backward pass
START = 30  # seconds until the first step on an H200, if nothing is compiled yet
ALIKE = 0.5  # mean cosine of different images above which features hardly tell them apart


def plan_run(
    name: str, changes: Iterable[str], root: str | None, device: torch.device, display: Display, **short: Any
) -> tuple[Recipe, Images]:
    """The recipe that suits the images and the machine, and its training images; what was chosen is said.

    Without a GPU, one's own images get the settings of `lighten`; `short` (of `shorthands`) and `changes` come after
    that, so what a person asks for stands. Other recipes are those of published runs and stay what they are.
    """
    base, changes = find_recipe(name, root=root), list(changes)
    own = DATASETS[base.data.name].holdout
    light = own and device.type == "cpu" and not name.endswith(".json")

    def chosen(n: int) -> Recipe:
        start = lighten(base, n) if light else base
        return change(start, [*shorthands(start, **short), *changes])

    images = load_split(chosen(SEEN), "train", display)
    recipe, note = fit_batch(chosen(len(images)), len(images))
    display.busy("timing a step")
    if not display.quiet:
        display.note(describe(recipe, images, device))
    if light and not changes and not any(short.values()):
        display.note("chosen to end in minutes without a GPU; --backbone, --size, --epochs, --batch choose otherwise")
    for text in (note, short_schedule(recipe)):
        if text:
            display.note(text)
    if own and len(images) < FEW:
        place = root or recipe.data.root
        display.note(
            f"{len(images):,} images are few to train an encoder from scratch: "
            f"bayesncl fit {place} -o codes reads codes from a pretrained one"
        )
    display.close()
    return recipe, images


def lighten(recipe: Recipe, n: int) -> Recipe:
    """The recipe for n images and a CPU: a small backbone on small views, about SEEN images seen in all."""
    return replace_fields(
        recipe,
        **LIGHT | {"views": LIGHT["views"] | {"size": 48}},
        data={"size": 56},
        run={"epochs": min(max(round(SEEN / n), 2), 100), "batch": 64, "checkpoint_every": 1, "log_every": 10},
    )


def load_split(recipe: Recipe, split: str, display: Display) -> Images:
    """A split of the recipe's images; one process builds a cache first, the others then find it."""
    display.busy(f"looking at the {split} images")
    if distributed.rank() == 0:
        images = load(recipe.data, split, display.count)
    distributed.barrier()
    if distributed.rank() != 0:
        images = load(recipe.data, split, display.count)
    display.close()
    return images


def describe(recipe: Recipe, images: Images, device: torch.device) -> str:
    """Images, classes, backbone, machine and expected time in one line."""
    parts = [f"{len(images):,} images", sizes(recipe, images)]
    parts.append(plural(len(images.class_names), "class") if images.class_names else "no classes")
    if images.broken:
        parts.append(f"{plural(images.broken, 'broken file')} left out")
    gpu = device.type == "cuda"
    place = torch.cuda.get_device_name(device) if gpu else f"CPU, {plural(torch.get_num_threads(), 'thread')}"
    work = f"{recipe.model.backbone} at {recipe.views.size} px, {plural(recipe.run.epochs, 'epoch')}, "
    work += f"batch {recipe.run.batch}"
    world = distributed.world_size()
    return f"{', '.join(parts)}; {work}; {f'{world} x ' * (world > 1)}{place}: {expected(recipe, len(images), device)}"


def sizes(recipe: Recipe, images: Images) -> str:
    """Sizes of the image files of a folder, by some of them; elsewhere of the images as they are stored."""
    found = ""
    if DATASETS[recipe.data.name].holdout and images.names:
        folder = split_folders(Path(recipe.data.root))[0]
        found = sizes_in_words(images.names, folder)
    height, width = images.pixels.shape[2:]
    return found or f"{width} x {height}"


def expected(recipe: Recipe, n: int, device: torch.device) -> str:
    """How long training on n images takes, by a step taken here, or on a GPU by what an H200 does."""
    world, steps = distributed.world_size(), n // recipe.run.batch * recipe.run.epochs
    if device.type == "cuda":
        pace = PACE if recipe.views.size <= 64 else PACE_LARGE
        # a picture of zeros on the CPU: to count on the meta device, as `cost` does, torch imports its compiler
        model = build_model(recipe)
        macs = sum(multiply_adds(model, parts_of(model)).values()) * recipe.run.batch
        seconds = START + OPERATIONS * macs * steps / pace / world
        there = "" if "H200" in torch.cuda.get_device_name(device) else " on an H200, longer on a smaller GPU"
        return f"about {words(seconds)}{there}"
    if world > 1:
        return "time left is shown after the first steps"
    batch = min(recipe.run.batch, 16)  # of a large one a part is enough, and at once
    timed = time_steps(replace_fields(recipe, run={"batch": batch}), device, steps=2, warm=1)
    return f"about {words(steps * recipe.run.batch / timed['images_per_second'])}"


def count_costs(
    names: Sequence[str], changes: Sequence[str] | None, root: str | None, device: torch.device | None
) -> dict[str, dict[str, Any]]:
    """`cost` of each recipe; with a device also `time_steps`, and with `root` of what `train` would do with it."""
    chosen, images, results = [find_recipe(name, changes) for name in names], 50_000, {}
    known = [recipe.name for recipe in chosen]
    if len(set(known)) < len(known):  # files of one recipe with other values
        known = list(names)
    for title, name, recipe in zip(known, names, chosen):
        more, classes, display = {}, None, Display()
        if root is not None and device is not None:
            recipe, split = plan_run(name, changes or [], root, device, display)
            images, classes = len(split), len(split.class_names or ()) or None
            more = {"images": images, "epochs": recipe.run.epochs}
        display.busy("timing steps" if device else "counting")
        results[title] = cost(recipe, classes) | more | (time_steps(recipe, device, images=images) if device else {})
        display.close()
    return results


def tell_difference(model: Encoder, images: Images, display: Display) -> None:
    """Say whether the features of 256 different images differ; by process 0, whose display speaks, alone."""
    if display.quiet:
        return
    some = np.array(images.pixels[spread_evenly(len(images), 256)])
    pixels = centre_crop(torch.from_numpy(some), model.recipe.views.size)
    cosine = mean_cosine(model.encode(pixels, batch=64).numpy())
    if cosine is None:
        display.note("warning: the features of nearly all images are zero: every gate is closed")
    elif cosine > ALIKE:
        display.note(
            f"warning: features of different images hardly differ: mean cosine {cosine:.2f}; "
            "train longer, on more images or with other settings"
        )
    else:
        display.note(f"features of different images differ: mean cosine {cosine:.2f}")


def mean_cosine(z: np.ndarray) -> float | None:
    """Mean cosine of all pairs of different rows [N, D], rows of zeros left out; None for fewer than two others."""
    length = np.linalg.norm(z.astype(np.float64), axis=1, keepdims=True)
    unit = (z / np.where(length > 0, length, 1))[length[:, 0] > 0]
    n = len(unit)
    return float((np.square(unit.sum(0)).sum() - n) / (n * (n - 1))) if n > 1 else None
