"""The built-in scenes: handwritten digits on photographs and textures, drawn from a seed.

Objects are scikit-learn's digits, tinted, with a dark rim that separates them from any background.
Backgrounds are cut from scikit-learn's two sample photographs or drawn. Digit k is tied to
background k: in training a given share of the digits stands on its own background. The test split
is balanced over object x background and uses digits that training never sees. "val" is balanced
too, with digits of training: a probe fitted on it cannot mistake the background for the object. A
`Plan` fixes every image, so the same object can be drawn on another background.
"""

import dataclasses
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image

from bayesncl import recipes
from bayesncl.data.cache import map_in_threads
from bayesncl.data.images import Images, Progress, track

OBJECTS = tuple(f"digit {k}" for k in range(10))
PHOTOGRAPHED = ("sky", "roofs", "foliage", "petals", "leaves")
BACKGROUNDS = (*PHOTOGRAPHED, "stripes", "checks", "dots", "gradient", "noise")

# Regions of the photographs (427 x 640): photo, top, bottom, left, right.
REGIONS = {
    "sky": ((0, 0, 130, 330, 640),),
    "roofs": ((0, 90, 330, 100, 325),),
    "foliage": ((0, 345, 427, 20, 200), (0, 325, 427, 400, 560)),
    "petals": ((1, 125, 320, 205, 410),),
    "leaves": ((1, 0, 330, 0, 160), (1, 0, 380, 460, 640)),
}
MAX_PATCHES = 512  # per background and split; fewer for large images
BANK_BYTES = 64 << 20
MIN_SCALE, MAX_SCALE = 0.5, 0.75  # size of objects as a share of the image's side
SHARPNESS = np.array([2.2, 1.3], np.float32)[:, None, None, None]  # of fill and rim
GRID = 12  # objects are GRID x GRID masks: the 8 x 8 digit and room for its rim
PIXELS_PER_BLOCK = 256 * 32 * 32  # the working set stays in the processor's cache


@dataclass(frozen=True)
class Plan:
    """Everything that determines N scenes; every field has N rows."""

    labels: np.ndarray  # the digit's class
    digits: np.ndarray  # which handwritten digit
    backgrounds: np.ndarray  # kind
    patches: np.ndarray  # which patch of the kind, float in [0, 1)
    gains: np.ndarray  # brightness of the background
    scales: np.ndarray  # size of the object as a share of the side
    positions: np.ndarray  # [N, 2] in [0, 1]: from top to bottom, from left to right
    tints: np.ndarray  # float32 [N, 3] in [0, 255]


def load(data: recipes.Data, split: str, progress: Progress | None = None) -> Images:
    """Draw one split: train, val (as large as train) or test."""
    return _draw(plan(data, split), data, split, progress)


def redraw(data: recipes.Data, split: str = "test") -> Images:
    """Draw a split with every object on another background, chosen evenly; all else equal."""
    old = plan(data, split)
    step = _rng(data.seed, f"{split} redraw").integers(1, len(BACKGROUNDS), len(old.labels))
    new = (old.backgrounds + step) % len(BACKGROUNDS)
    return _draw(dataclasses.replace(old, backgrounds=new), data, split, None)


def plan(data: recipes.Data, split: str) -> Plan:
    """Draw all random numbers of a split from data.seed."""
    _, targets, for_test = digits()
    rng = _rng(data.seed, f"{split} plan")
    kinds = len(BACKGROUNDS)
    if split == "train":
        count = data.train_images
        labels = rng.permutation(np.arange(count) % kinds)
        # Exactly the share `tied` on their own background, the rest evenly on the others.
        free = rng.permutation(count) >= round(data.tied * count)
        backgrounds = np.where(free, (labels + rng.integers(1, kinds, count)) % kinds, labels)
    else:
        count = data.test_images if split == "test" else data.train_images
        pair = rng.permutation(np.arange(count) % kinds**2)
        labels, backgrounds = pair // kinds, pair % kinds
    chosen = np.empty(count, np.int64)
    for k in range(len(OBJECTS)):
        pool = np.flatnonzero((targets == k) & (for_test == (split == "test")))
        rows = np.flatnonzero(labels == k)
        chosen[rows] = pool[rng.integers(0, len(pool), len(rows))]
    patches, gains = rng.random(count), rng.uniform(0.65, 1.0, count).astype(np.float32)
    scales, positions = rng.uniform(MIN_SCALE, MAX_SCALE, count), rng.random((count, 2))
    # Bright colors of any hue, saturation up to 0.8, full value.
    hue, saturation = rng.random((count, 1)), rng.uniform(0.1, 0.8, (count, 1))
    wheel = np.clip(np.abs((hue + np.array([0, 2 / 3, 1 / 3])) % 1 * 6 - 3) - 1, 0, 1)
    tints = (255 * (1 - saturation * (1 - wheel))).astype(np.float32)
    return Plan(labels, chosen, backgrounds, patches, gains, scales, positions, tints)


def _rng(seed: int, what: str) -> np.random.Generator:
    return np.random.default_rng([seed, *what.encode()])


@lru_cache(maxsize=1)
def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Masks float32 [2, M, GRID, GRID] (fill, rim), classes [M], and which are for testing [M].

    Every fifth digit of a class is for testing, whatever the seed.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    fill = np.zeros((len(bunch.images), GRID, GRID), np.float32)
    edge = (GRID - 8) // 2
    fill[:, edge:-edge, edge:-edge] = bunch.images / 16
    wide = np.pad(fill, ((0, 0), (1, 1), (1, 1)))
    around = [wide[:, y : y + GRID, x : x + GRID] for y in range(3) for x in range(3)]
    rim = np.max(around, axis=0)
    targets = bunch.target.astype(np.int64)
    for_test = np.zeros(len(targets), bool)
    for k in range(len(OBJECTS)):
        for_test[np.flatnonzero(targets == k)[::5]] = True
    return np.stack([fill, rim]), targets, for_test


def _resampling(starts: np.ndarray, sides: np.ndarray, size: int) -> np.ndarray:
    """Matrices float32 [n, size, GRID] that map GRID cells to `size` pixels, linearly.

    The digit, the 8 middle cells, begins at pixel `starts` and is `sides` pixels long.
    """
    pixel = np.arange(size, dtype=np.float32) + 0.5
    starts, cells = starts.astype(np.float32)[:, None], (sides / 8).astype(np.float32)[:, None]
    at = (pixel - starts) / cells + ((GRID - 8) / 2 - 0.5)  # [n, size], in cells
    return np.maximum(1 - np.abs(at[:, :, None] - np.arange(GRID, dtype=np.float32)), 0)


def _draw(plan: Plan, data: recipes.Data, split: str, progress: Progress | None) -> Images:
    size, count = data.size, len(plan.labels)
    masks, _, _ = digits()
    bank = _bank(data.seed, split, size)
    sides = plan.scales * size
    starts = plan.positions * (size - sides)[:, None]  # [N, 2]
    patch = (plan.patches * bank.shape[1]).astype(np.int64)
    pixels = np.empty((count, 3, size, size), np.uint8)

    def draw(part: slice) -> None:
        down = _resampling(starts[part, 0], sides[part], size)
        across = _resampling(starts[part, 1], sides[part], size).transpose(0, 2, 1)
        mask = down @ masks[:, plan.digits[part]] @ across  # [2, n, size, size]
        fill, rim = np.clip(mask * SHARPNESS - 0.5, 0, 1)
        behind = (1 - fill) * (1 - 0.85 * rim) * plan.gains[part, None, None]
        scene = bank[plan.backgrounds[part], patch[part]] * behind[:, None]
        scene += fill[:, None] * plan.tints[part, :, None, None]
        pixels[part] = scene  # at most 255: fill and behind add up to at most 1

    step = max(1, PIXELS_PER_BLOCK // (size * size))
    parts = [slice(start, start + step) for start in range(0, count, step)]
    for _ in track(map_in_threads(draw, parts), len(parts), "drawing scenes", progress):
        pass  # NumPy works outside the interpreter lock
    return Images(pixels, plan.labels, plan.backgrounds, OBJECTS, BACKGROUNDS)


@lru_cache(maxsize=4)
def _bank(seed: int, split: str, size: int) -> np.ndarray:
    """Background patches, uint8 [kinds, P, 3, size, size]."""
    count = int(np.clip(BANK_BYTES // (len(BACKGROUNDS) * 3 * size * size), 2, MAX_PATCHES))
    rng = _rng(seed, f"{split} backgrounds")
    draw = [_cut if kind in REGIONS else _texture for kind in BACKGROUNDS]
    return np.stack([f(kind, count, size, rng) for f, kind in zip(draw, BACKGROUNDS)])


@lru_cache(maxsize=1)
def _photos() -> list[Image.Image]:
    from sklearn.datasets import load_sample_images

    return [Image.fromarray(photo) for photo in load_sample_images().images]


def _cut(kind: str, count: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Random squares of a region of a photograph, some mirrored."""
    out = np.empty((count, 3, size, size), np.uint8)
    for row in out:
        photo, top, bottom, left, right = REGIONS[kind][rng.integers(len(REGIONS[kind]))]
        side = rng.uniform(32, 64)
        x, y = rng.uniform(left, right - side), rng.uniform(top, bottom - side)
        box = (x, y, x + side, y + side)
        patch = _photos()[photo].resize((size, size), Image.Resampling.BICUBIC, box=box)
        row[:] = np.asarray(patch).transpose(2, 0, 1)[:, :, :: rng.choice((-1, 1))]
    return out


def _texture(kind: str, count: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Two random colors, mixed by a drawn pattern in [0, 1]."""
    y, x = np.mgrid[:size, :size] / size
    angle, phase = rng.uniform(0, np.pi, (count, 1, 1)), rng.random((2, count, 1, 1))
    along = x * np.cos(angle) + y * np.sin(angle)
    if kind == "stripes":
        pattern = (along * rng.integers(4, 8, (count, 1, 1)) + phase[0]) % 1 < 0.5
    elif kind == "checks":
        cells = rng.integers(3, 6, (count, 1, 1))
        across, down = (np.floor((at + p) * cells * 2) % 2 for at, p in zip((x, y), phase))
        pattern = across == down
    elif kind == "dots":
        cells = rng.integers(4, 7, (count, 1, 1))
        across, down = ((at * cells + p) % 1 - 0.5 for at, p in zip((x, y), phase))
        pattern = np.hypot(across, down) < 0.33
    elif kind == "gradient":
        pattern = (along - along.min((1, 2), keepdims=True)) / np.ptp(along, (1, 2), keepdims=True)
    else:
        pattern = rng.random((count, size, size))
    # Colors from 30 to 200, at least 60 apart in every channel, so that every pattern shows.
    one = rng.uniform(0, 170, (count, 3, 1, 1))
    other = (one + rng.uniform(60, 110, one.shape)) % 170
    mix = pattern.astype(np.float32)[:, None]
    return (30 + one * (1 - mix) + other * mix).astype(np.uint8)
