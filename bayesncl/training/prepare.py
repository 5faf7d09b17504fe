"""Before and after a run: fit a named recipe to images and machine, and describe the result."""

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bayesncl import distributed
from bayesncl.data import DATASETS, load
from bayesncl.data.decode import describe_sizes
from bayesncl.data.folder import split_folders
from bayesncl.data.images import Images, spread_evenly
from bayesncl.errors import InputError
from bayesncl.method.encoder import Encoder, center_crop
from bayesncl.progress import Display, plural
from bayesncl.recipes import LIGHT, Recipe, change, find_recipe, replace_fields, shorthands
from bayesncl.training.run_folder import RunFolder

MIN_IMAGES = 5000  # with fewer, a pretrained encoder is the better choice
CPU_IMAGES = 100_000  # images times epochs of the CPU preset: minutes on two cores
MAX_COSINE = 0.5  # mean cosine between images above which features hardly differ


def prepare_run(
    recipe: Recipe | str, changes: Iterable[str], root: str | None, device: torch.device,
    display: Display, images: Images | None = None, **short: Any,
) -> tuple[Recipe, Images]:
    """Resolve a recipe for the images and the machine; load the training images unless given.

    A Recipe only gets the changes. A named one is adapted: the batch to the number of images and,
    on a CPU and for a user's own images, the rest by the CPU preset. `short` (see `shorthands`) and
    `changes` override it. The recipes of published runs are not adapted.
    """
    changes, name = list(changes), recipe if isinstance(recipe, str) else ""
    base = find_recipe(recipe, root=root)
    own = DATASETS[base.data.name].holdout
    preset = own and device.type == "cpu" and bool(name) and not name.endswith(".json")

    def resolve(count: int) -> Recipe:
        start = cpu_preset(base, count) if preset else base
        return change(start, [*shorthands(start, **short), *changes])

    if images is None:
        images = load_split(resolve(CPU_IMAGES), "train", display)
    count = len(images)
    wanted = resolve(count)
    if not name:
        return wanted, images
    recipe = clamp_batch(wanted, count)
    notes = [describe(recipe, images, device)]
    if preset and not changes and not any(short.values()):
        notes.append(
            "CPU preset: small backbone and few epochs; --backbone, --size, --epochs override"
        )
    if recipe.run.batch != wanted.run.batch:
        lowered = f"batch lowered from {wanted.run.batch} to {recipe.run.batch}"
        notes.append(f"only {count} training images: {lowered}")
    notes += short_schedule(recipe)
    if own and count < MIN_IMAGES:
        notes.append(
            f"{count:,} images are few to train an encoder from scratch; to use a pretrained one: "
            f"bayesncl fit {root or recipe.data.root} -o codes"
        )
    for note in notes:
        display.note(note)
    return recipe, images


def cpu_preset(recipe: Recipe, count: int) -> Recipe:
    """The recipe for `count` images on a CPU: small backbone, small views, few epochs."""
    epochs = min(max(round(CPU_IMAGES / count), 2), 100)
    return replace_fields(
        recipe,
        **LIGHT | {"views": LIGHT["views"] | {"size": 48}},
        data={"size": 56},
        run={"epochs": epochs, "batch": 64, "checkpoint_every": 1, "log_every": 10},
    )


def clamp_batch(recipe: Recipe, count: int) -> Recipe:
    """Lower a batch that `count` images do not fill, to four steps of at least 16 per epoch."""
    if count >= recipe.run.batch:
        return recipe
    return replace_fields(recipe, run={"batch": max(count // 4, min(count, 16)) // 2 * 2})


def check_images(recipe: Recipe, images: Images) -> None:
    """Raise InputError unless the images fill a batch that the processes can share."""
    count, batch, world = len(images), recipe.run.batch, distributed.world_size()
    if count < batch:
        fits = max(2, count - count % 2)
        raise InputError(f"{count} images do not fill a batch of {batch}: --set run.batch={fits}")
    if batch % world:
        fits = batch // world * world or world
        raise InputError(f"{world} processes cannot share a batch of {batch}: use run.batch={fits}")
    if recipe.run.knn_every and images.labels is None:
        raise InputError("run.knn_every needs labeled images")
    of_paper = recipe.model.head == "projector" and recipe.objective.similarity == "dot"
    if recipe.run.dynamics_every and not of_paper:
        raise InputError(
            "run.dynamics_every: gradient dynamics are those of the paper's head and loss, "
            "model.head=projector and objective.similarity=dot"
        )


def short_schedule(recipe: Recipe) -> list[str]:
    """A warning for runs that end during their warm-up."""
    warmup = recipe.optimizer.warmup_epochs
    if recipe.run.epochs > warmup:
        return []
    return [f"the run ends within its warm-up of {plural(warmup, 'epoch')}: "
            "--set optimizer.warmup_epochs=0 trains at the full rate"]


def load_split(recipe: Recipe, split: str, display: Display) -> Images:
    """Load a split; process 0 builds its cache before the others read it."""
    display.busy(f"loading the {split} images")
    if distributed.rank() != 0:
        distributed.barrier()
    images = load(recipe.data, split, display.count)
    if distributed.rank() == 0:
        distributed.barrier()
    display.close()
    return images


def describe(recipe: Recipe, images: Images, device: torch.device) -> str:
    """Images, classes, backbone, length and machine in one line."""
    height, width = images.pixels.shape[2:]
    sizes = f"{width} x {height}"
    if DATASETS[recipe.data.name].holdout and images.names:  # stored at another size
        sizes = describe_sizes(images.names, split_folders(Path(recipe.data.root))[0]) or sizes
    classes = plural(len(images.class_names), "class") if images.class_names else "no classes"
    parts = [f"{len(images):,} images", sizes, classes]
    if images.broken:
        parts.append(f"{plural(images.broken, 'broken file')} skipped")
    work = f"{recipe.model.backbone} at {recipe.views.size} px"
    length = f"{plural(recipe.run.epochs, 'epoch')}, batch {recipe.run.batch}"
    machine = f"CPU, {plural(torch.get_num_threads(), 'thread')}"
    if device.type == "cuda":
        machine = torch.cuda.get_device_name(device)
    world = distributed.world_size()
    return f"{', '.join(parts)}; {work}, {length}; {f'{world} x ' if world > 1 else ''}{machine}"


def report_similarity(model: Encoder, images: Images) -> str:
    """Whether the codes of 256 training images differ, in one line."""
    some = np.array(images.pixels[spread_evenly(len(images), 256)])
    z = model.encode(center_crop(torch.from_numpy(some), model.recipe.views.size), batch=64)
    n = int(z.any(1).sum())
    if n < 2:
        return "warning: the codes of nearly all images are zero: every gate is closed"
    cosine = float((z.double().sum(0).square().sum() - n) / (n * (n - 1)))  # rows have unit length
    if cosine > MAX_COSINE:
        return (f"warning: the codes of different images hardly differ (mean cosine {cosine:.2f}): "
                "train longer, on more images or with other settings")
    return f"the codes of different images differ (mean cosine {cosine:.2f})"


def next_commands(run: RunFolder) -> str:
    """What to do with a trained run, as commands to copy."""
    path = shlex.quote(str(run))
    return (
        f"trained: {run}\n"
        f"measure it:          bayesncl evaluate {path}\n"
        f"browse dimensions:   bayesncl atlas {path} --serve\n"
        f"fit readable codes:  bayesncl fit {path} -o codes"
    )
