"""Views: operations against Pillow, parameters against their definitions, independence."""

import colorsys
import dataclasses
import itertools
import math
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter, ImageOps
from scipy import stats
from sklearn.datasets import load_sample_images

from bayesncl.method import augment
from bayesncl.recipes import Views

ALL_ON = Views(jitter=1.0, grayscale=1.0, blur=1.0, solarize=1.0, flip=1.0)
CROP_ONLY = Views(jitter=0.0, grayscale=0.0, blur=0.0, solarize=0.0, flip=0.0)
RESAMPLE = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
LEVEL = 1 / 255  # one step of Pillow's 8 bits


def _photos(count: int, rows: int, columns: int) -> torch.Tensor:
    """One image of noise, the others crops of two photographs, uint8 [count, 3, rows, columns]."""
    rng = np.random.default_rng(0)
    photos = load_sample_images().images
    out = [rng.integers(0, 256, (rows, columns, 3), dtype=np.uint8)]
    while len(out) < count:
        photo = photos[len(out) % 2]
        y, x = (int(rng.integers(0, a - b + 1)) for a, b in zip(photo.shape, (rows, columns)))
        out.append(photo[y : y + rows, x : x + columns])
    return torch.from_numpy(np.stack(out)).permute(0, 3, 1, 2).contiguous()


def _params(count: int, rows: int, columns: int, **changes: object) -> augment.Params:
    """Parameters of 2 * count views that change nothing except `changes`."""
    n = 2 * count
    no, zero = torch.zeros(n, dtype=torch.bool), torch.zeros(n, dtype=torch.int64)
    params = augment.Params(
        top=zero, left=zero, height=zero + rows, width=zero + columns, flip=no, jitter=no,
        factors=torch.ones(n, 3), hue=torch.zeros(n), order=torch.arange(3).expand(n, 3),
        hue_at=zero, gray=no, blur=no, sigma=torch.ones(n), solarize=no,
    )  # fmt: skip
    for name, value in changes.items():
        old = getattr(params, name)
        params = params._replace(**{name: torch.as_tensor(value, dtype=old.dtype).expand_as(old)})
    return params


def _pillow(pixels: torch.Tensor) -> list[Image.Image]:
    return [Image.fromarray(p.permute(1, 2, 0).numpy()) for p in pixels]


def _tensor(images: list[Image.Image]) -> torch.Tensor:
    return torch.from_numpy(np.stack([np.asarray(i) for i in images])).permute(0, 3, 1, 2) / 255


BLURS = [(s, lambda image, s=s: image.filter(ImageFilter.GaussianBlur(s))) for s in (0.1, 0.86, 12.0)]


@pytest.mark.parametrize(
    ("changes", "twin"),
    [
        ({}, lambda image: image),
        ({"flip": True}, ImageOps.mirror),
        ({"solarize": True}, lambda image: ImageOps.solarize(image, 128)),
        ({"gray": True}, lambda image: image.convert("L").convert("RGB")),
        *(({"blur": True, "sigma": sigma}, twin) for sigma, twin in BLURS),
    ],
)
def test_each_operation_equals_pillow(changes: dict, twin: Callable) -> None:
    """In a blur, Pillow rounds after each of its six passes, up to half a level each."""
    pixels = _photos(12, 32, 32)
    views = augment.apply(pixels, _params(12, 32, 32, **changes), ALL_ON)
    assert torch.equal(views[:12], views[12:])
    difference = (views[:12] - _tensor([twin(image) for image in _pillow(pixels)])).abs()
    assert difference.max() < LEVEL * {"blur": 3, "gray": 0.6}.get(next(iter(changes), ""), 5e-4)
    assert difference.mean() < 0.5 * LEVEL


def _pillow_crop(
    image: Image.Image, top: int, left: int, height: int, width: int, size: int, kind: str = "bicubic"
) -> Image.Image:
    # columns first, as Pillow did when the experiments were run; newer versions may differ
    image, how = image.crop((left, top, left + width, top + height)), RESAMPLE[kind]
    return image.resize((size, height), how).resize((size, size), how)


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize(
    ("rows", "columns", "size", "boxes"),
    [
        (32, 32, 32, [(0, 0, 32, 32), (3, 5, 9, 12), (20, 1, 12, 31), (31, 31, 1, 1), (0, 30, 32, 2)]),
        (64, 48, 32, [(0, 0, 64, 48), (7, 3, 40, 45), (10, 20, 33, 17), (1, 0, 63, 20)]),  # shrinks
    ],
)
def test_crop_and_resize_equal_pillow(
    interpolation: str, rows: int, columns: int, size: int, boxes: list
) -> None:
    """Pillow rounds after each direction: half a level times 1.3, plus half a level."""
    pixels = _photos(2, rows, columns)
    views = dataclasses.replace(CROP_ONLY, size=size, interpolation=interpolation)
    for top, left, height, width in boxes:
        params = _params(2, rows, columns, top=top, left=left, height=height, width=width)
        ours = augment.apply(pixels, params, views)[:2]
        box = (top, left, height, width, size, interpolation)
        theirs = _tensor([_pillow_crop(image, *box) for image in _pillow(pixels)])
        assert ours.shape == (2, 3, size, size)
        assert (ours - theirs).abs().max() < 1.2 * LEVEL


def test_jitter_in_all_24_orders_equals_a_slow_twin() -> None:
    """Pixel by pixel in float64, for each order of the four operations."""
    rng = np.random.default_rng(1)
    orders = list(itertools.permutations(range(4)))  # 3 is the hue
    pixels = torch.from_numpy(rng.integers(0, 256, (12, 3, 8, 8), dtype=np.uint8))
    factors, turns = rng.uniform(0.2, 1.8, (24, 3)), rng.uniform(-0.2, 0.2, 24)
    drawn = {"factors": torch.from_numpy(factors), "hue": torch.from_numpy(turns)}
    params = _params(12, 8, 8, jitter=True, **drawn)._replace(
        order=torch.tensor([[k for k in order if k < 3] for order in orders]),
        hue_at=torch.tensor([order.index(3) for order in orders]),
    )
    ours = augment.apply(pixels, params, Views(size=8, jitter=1.0, grayscale=0.0, blur=0.0))
    for row, order in enumerate(orders):
        image = pixels[row % 12].double().permute(1, 2, 0).numpy() / 255
        for operation in order:
            if operation == 3:
                image = _slow_hue(image, turns[row])
                continue
            gray = image @ np.array(augment.GRAY)
            target = [np.zeros(()), gray.mean(), gray[..., None]][operation]
            f = factors[row, operation]
            image = np.clip(f * image + (1 - f) * target, 0, 1)
        assert np.abs(ours[row].permute(1, 2, 0).numpy() - image).max() < 2e-5, order


def _slow_hue(image: np.ndarray, turns: float) -> np.ndarray:
    out = np.empty_like(image)
    for y, x in np.ndindex(*image.shape[:2]):
        h, s, v = colorsys.rgb_to_hsv(*image[y, x])
        out[y, x] = colorsys.hsv_to_rgb((h + turns) % 1, s, v)
    return out


STEPS = (
    ("top", "left", "height", "width"), ("jitter", "factors", "hue", "order", "hue_at"), ("gray",),
    ("blur", "sigma"), ("solarize",), ("flip",),
)  # fmt: skip


@pytest.mark.parametrize(("rows", "size"), [(32, 32), (64, 48)])
def test_all_operations_are_the_single_ones_in_the_published_order(rows: int, size: int) -> None:
    """Twin: one after the other, with 8-bit images between."""
    views = Views(size=size, grayscale=0.4, solarize=0.2)
    pixels = _photos(12, rows, rows)
    params = augment.draw(views, torch.arange(12), 1, 2, (rows, rows))
    ours, twin = augment.apply(pixels, params, views), pixels.repeat(2, 1, 1, 1)
    for names in STEPS:
        drawn = {name: torch.cat([getattr(params, name)] * 2) for name in names}
        step = _params(24, *twin.shape[2:], **drawn)
        twin = (augment.apply(twin, step, views)[:24] * 255).round().to(torch.uint8)
    difference = (ours - twin / 255).abs()
    assert difference.mean() < 0.5 * LEVEL
    assert difference.max() < 6 * LEVEL


MANY = torch.arange(5_000)


def _slow_crop(views: Views, rows: int, columns: int, rng: random.Random) -> tuple[int, ...]:
    """torchvision's definition, one image at a time: top, left, height, width."""
    low, high = (math.log(r) for r in views.crop_ratio)
    for _ in range(10):
        area = rows * columns * rng.uniform(*views.crop_scale)
        ratio = math.exp(rng.uniform(low, high))
        width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < width <= columns and 0 < height <= rows:
            return rng.randint(0, rows - height), rng.randint(0, columns - width), height, width
    width, height = columns, rows
    if columns / rows < views.crop_ratio[0]:
        height = round(width / views.crop_ratio[0])
    elif columns / rows > views.crop_ratio[1]:
        width = round(height * views.crop_ratio[1])
    return (rows - height) // 2, (columns - width) // 2, height, width


@pytest.mark.parametrize(
    ("rows", "columns", "scale"),
    [(32, 32, (0.08, 1.0)), (20, 48, (0.08, 1.0)), (48, 20, (0.4, 1.0)), (30, 32, (0.9, 1.0))],
)
def test_crops_follow_the_definition(rows: int, columns: int, scale: tuple[float, float]) -> None:
    views = Views(crop_scale=scale)
    p = augment.draw(views, MANY, 0, 0, (rows, columns))
    ours = torch.stack([p.top, p.left, p.height, p.width], 1).numpy()
    assert (ours >= 0).all() and (ours[:, 2:] > 0).all()
    assert (ours[:, :2] + ours[:, 2:] <= (rows, columns)).all()
    rng = random.Random(0)
    theirs = np.array([_slow_crop(views, rows, columns, rng) for _ in range(5_000)])

    def measures(crops: np.ndarray) -> list[np.ndarray]:
        top, left, height, width = crops.T
        return [top, left, height, width, height * width, width / height, top - left]

    for a, b in zip(measures(ours), measures(theirs)):
        assert stats.ks_2samp(a, b).pvalue > 1e-3


def test_other_parameters_follow_the_definition() -> None:
    views = Views(solarize=0.1, contrast=0.4, saturation=0.2)
    p = augment.draw(views, MANY, 0, 0, (32, 32))
    n = len(p.top)
    for name in ("jitter", "gray", "blur", "solarize", "flip"):
        chance = {"gray": views.grayscale}.get(name) or getattr(views, name)
        assert stats.binomtest(int(getattr(p, name).sum()), n, chance).pvalue > 1e-3, name
    for column, spread in enumerate((0.8, 0.4, 0.2)):
        law = "uniform", (1 - spread, 2 * spread)
        assert stats.kstest(p.factors[:, column].numpy(), *law).pvalue > 1e-3
    assert stats.kstest(p.hue.numpy(), "uniform", (-0.2, 0.4)).pvalue > 1e-3
    assert stats.kstest(p.sigma.numpy(), "uniform", (0.1, 1.9)).pvalue > 1e-3
    assert (p.order.sort(1).values == torch.arange(3)).all()
    orders = p.order[:, 0] * 12 + p.order[:, 1] * 4 + p.hue_at  # 24 of 36 codes occur
    counts = torch.bincount(orders)
    assert stats.chisquare(counts[counts > 0].numpy()).pvalue > 1e-3
    assert (counts > 0).sum() == 24


def test_frozen_parameters() -> None:
    """A change here changes the views of every published run."""
    p = augment.draw(Views(solarize=0.5), torch.tensor([0, 1]), 3, 10, (32, 32))
    assert torch.stack([p.top, p.left, p.height, p.width], 1).tolist() == [
        [6, 5, 21, 23], [1, 5, 23, 27], [3, 0, 24, 18], [0, 8, 31, 24],
    ]  # fmt: skip
    assert p.order.tolist() == [[0, 1, 2], [2, 1, 0], [1, 2, 0], [1, 2, 0]]
    assert p.hue_at.tolist() == [0, 2, 0, 3]
    assert torch.stack([p.flip, p.jitter, p.gray, p.blur, p.solarize]).long().tolist() == [
        [0, 0, 1, 0], [1, 1, 1, 1], [0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0],
    ]  # fmt: skip
    assert p.factors[0].tolist() == pytest.approx([1.628804, 1.646324, 0.231279], abs=1e-5)
    assert p.hue.tolist() == pytest.approx([-0.170230, 0.021368, 0.155774, -0.057455], abs=1e-5)
    assert p.sigma.tolist() == pytest.approx([1.423920, 0.708130, 1.932429, 1.490047], abs=1e-5)


def _share_differing(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).abs().flatten(1).max(1).values > 0.01).float().mean().item()


def test_views_depend_on_seed_epoch_and_image_alone() -> None:
    pixels, index, views = _photos(20, 32, 32), torch.arange(100, 120), Views()
    whole = augment.make_views(pixels, index, 3, 4, views)
    assert torch.equal(augment.make_views(pixels, index, torch.tensor(3), 4, views), whole)
    params = augment.draw(views, index, 3, 4, (32, 32))
    for part in torch.randperm(20, generator=torch.Generator().manual_seed(0)).split(7):
        mine = augment.make_views(pixels[part], index[part], 3, 4, views)
        both = torch.cat([part, part + 20])  # rows of its first and second views
        for drawn, expected in zip(augment.draw(views, index[part], 3, 4, (32, 32)), params):
            assert torch.equal(drawn, expected[both])
        assert (mine - whole[both]).abs().max() < 1e-6
    for seed, epoch in ((5, 3), (4, 4)):
        other = augment.make_views(pixels, index, epoch, seed, views)
        assert _share_differing(other, whole) > 0.9  # some views are all white
    assert _share_differing(*whole.chunk(2)) > 0.9


@pytest.mark.gpu
def test_gpu_gives_the_same_views_and_fits_in_a_graph() -> None:
    pixels, index, views = _photos(32, 32, 32), torch.arange(32), Views()
    expected = augment.make_views(pixels, index, 5, 6, views)
    pixels, index, epoch = pixels.cuda(), index.cuda(), torch.tensor(0, device="cuda")
    augment.make_views(pixels, index, epoch, 6, views)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = augment.make_views(pixels, index, epoch, 6, views)
    epoch.fill_(5)
    graph.replay()
    assert (out.cpu() - expected).abs().max() < 1 / 255  # products in half precision
