"""`augment.make_views` for small images, normalized: one program computes one view in registers.

augment.py and rng.py explain the formulas; tests compare the two. Roots and powers are rounded
differently, so a crop is, rarely, a pixel larger or smaller.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from bayesncl.method import augment, rng
from bayesncl.recipes import Views

MAX_SIDE = 64  # pixels, of images and views
GAMMA, MIX_1, MIX_2 = (tl.constexpr(word) for word in (rng.GAMMA, rng.MIX_1, rng.MIX_2))
ATTEMPTS = tl.constexpr(augment.CROP_ATTEMPTS)
CONTRAST, SATURATION = tl.constexpr(augment.CONTRAST), tl.constexpr(augment.SATURATION)
RED, GREEN, BLUE = (tl.constexpr(share) for share in augment.GRAY)


@triton.jit
def mix(x):
    """`rng._mix`."""
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * MIX_1
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * MIX_2
    return x ^ ((x >> 31) & ((1 << 33) - 1))


@triton.jit
def uniform(key, position):
    """Number `position`, from 0, of a key of `rng.uniform`."""
    bits = (mix((key + position + 1) * GAMMA) >> 40) & ((1 << 24) - 1)
    return bits.to(tl.float32) * (2.0**-24)


@triton.jit
def clip(x):
    """x in [0, 1]."""
    return tl.minimum(tl.maximum(x, 0.0), 1.0)


@triton.jit
def product(a, b):
    """a @ b in half precision, as in `augment._product`."""
    return tl.dot(a.to(tl.float16), b.to(tl.float16)).to(tl.float32)


@triton.jit
def resampling(
    out, start, length, S: tl.constexpr, INPUTS: tl.constexpr, BILINEAR: tl.constexpr
):
    """`augment._resampling` to `out`, [SIDE, INPUTS]; 0 beyond the image, unused beyond S."""
    scale = length.to(tl.float32) / S
    stretch = tl.maximum(scale, 1.0)
    center = (out + 0.5) * scale / stretch
    pos = tl.arange(0, INPUTS) - start
    inside = (pos >= 0) & (pos < length)
    distance = tl.abs(tl.where(inside, (pos + 0.5) / stretch, 1e6)[None, :] - center[:, None])
    if BILINEAR:
        weight = tl.maximum(1 - distance, 0.0)
    else:
        u = tl.maximum(2 - distance, 0.0)
        v = tl.maximum(u - 1, 0.0)
        weight = (0.5 * u - 0.5) * u * u + (1 - 2 * v) * v * v
    total = tl.sum(weight, 1)
    return weight / tl.where(total == 0, 1.0, total)[:, None]


@triton.jit
def gray_of(red, green, blue):
    """`augment._gray`."""
    return RED * red + GREEN * green + BLUE * blue


@triton.jit
def blend(red, green, blue, kind, factor, inside, S: tl.constexpr):
    """A step of `augment._blend_steps`: brightness, contrast or saturation; 1 changes nothing."""
    gray = gray_of(red, green, blue)
    mean = tl.sum(tl.sum(tl.where(inside, gray, 0.0), 1), 0) / (S * S)
    base = (1 - factor) * tl.where(kind == SATURATION, gray, tl.where(kind == CONTRAST, mean, 0.0))
    return clip(factor * red + base), clip(factor * green + base), clip(factor * blue + base)


@triton.jit
def shift_hue(red, green, blue, turns):
    """`augment._shift_hue`."""
    high, low = tl.maximum(tl.maximum(red, green), blue), tl.minimum(tl.minimum(red, green), blue)
    chroma = high - low
    side = tl.where(high == green, blue - red + 2 * chroma, red - green + 4 * chroma)
    t = tl.where(high == red, green - blue, side) / tl.maximum(chroma, 1e-8) + 6 * turns
    t = t - 6 * tl.floor(t / 6)
    return (
        low + chroma * clip(tl.abs(t - 3) - 1),
        low + chroma * clip(2 - tl.abs(t - 2)),
        low + chroma * clip(2 - tl.abs(t - 4)),
    )


@triton.jit
def blur_matrix(sigma, S: tl.constexpr, SIDE: tl.constexpr):
    """G of `augment._blur`."""
    variance = sigma * sigma / 3
    whole = tl.floor((tl.sqrt(12 * variance + 1) - 1) / 2)
    radius = whole + (2 * whole + 1) * (whole * (whole + 1) - 3 * variance) / (
        6 * (variance - (whole + 1) * (whole + 1))
    )
    pos = tl.arange(0, SIDE)
    reach = tl.maximum(radius + 1 - tl.abs(pos[:, None] - pos[None, :]).to(tl.float32), 0.0)
    at_edge = (pos == 0) | (pos == S - 1)
    box = tl.where(at_edge[None, :], reach, tl.minimum(reach, 1.0)) / (2 * radius + 1)
    box = tl.where(pos[None, :] < S, box, 0.0)
    return product(product(box, box), box)


@triton.jit
def load_plane(
    pixels, image, channel, across, down,
    H: tl.constexpr, W: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):
    """A channel of an image, cropped and resized: [SIDE, SIDE], rows first."""
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    at = (image * 3 + channel) * H * W + row[:, None] * W + column[None, :]
    exists = (row < H)[:, None] & (column < W)[None, :]
    plane = tl.load(pixels + at, mask=exists, other=0).to(tl.float32) / 255
    return clip(product(down, clip(product(plane, tl.trans(across)))))


@triton.jit
def store_plane(x, plane, at, inside, solarize, mean, std):
    """Solarize if asked to, normalize and store."""
    plane = tl.where(solarize, tl.where(plane >= 0.5, 1 - plane, plane), plane)
    tl.store(x + at, ((plane - tl.load(mean)) / tl.load(std)), mask=inside)


@triton.jit
def make_view(
    pixels, index, epoch, seed, mean, std, x, images,
    scale_low, scale_spread, log_low, log_spread, central_height, central_width,
    flip_share, jitter_share, brightness, contrast, saturation, hue_spread, gray_share, blur_share,
    sigma_low, sigma_spread, solarize_share,
    JITTER: tl.constexpr, HUE: tl.constexpr, GRAYSCALE: tl.constexpr, BLUR: tl.constexpr,
    BILINEAR: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, S: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SIDE: tl.constexpr,
):
    """Compute view `program // images` of image `program % images`, to x [2 images, 3, S, S]."""
    view, image = tl.program_id(0) // images, tl.program_id(0) % images
    key = mix(tl.load(index + image) + GAMMA)
    key = mix(key + GAMMA + tl.load(seed))
    key = mix(key + GAMMA + view)
    key = mix(key + GAMMA + tl.load(epoch))

    # augment._draw_crop
    attempt = tl.arange(0, 16)
    area = H * W * (scale_low + scale_spread * uniform(key, attempt))
    ratio = tl.exp(log_low + log_spread * uniform(key, ATTEMPTS + attempt))
    widths = tl.floor(tl.sqrt(area * ratio) + 0.5).to(tl.int32)
    heights = tl.floor(tl.sqrt(area / ratio) + 0.5).to(tl.int32)
    fits = (widths > 0) & (widths <= W) & (heights > 0) & (heights <= H) & (attempt < ATTEMPTS)
    first = tl.min(tl.where(fits, attempt, 16), 0)
    found = first < 16
    width = tl.where(found, tl.sum(tl.where(attempt == first, widths, 0), 0), central_width)
    height = tl.where(found, tl.sum(tl.where(attempt == first, heights, 0), 0), central_height)
    u = 2 * ATTEMPTS
    top = (uniform(key, u) * (H - height + 1)).to(tl.int32)
    left = (uniform(key, u + 1) * (W - width + 1)).to(tl.int32)
    top = tl.where(found, top, (H - central_height) // 2)
    left = tl.where(found, left, (W - central_width) // 2)

    pos = tl.arange(0, SIDE)
    flipped = tl.where(uniform(key, u + 5) < flip_share, S - 1 - pos, pos)
    across = resampling(flipped, left, width, S, COLUMNS, BILINEAR)
    down = resampling(pos, top, height, S, ROWS, BILINEAR)
    red = load_plane(pixels, image, 0, across, down, H, W, ROWS, COLUMNS)
    green = load_plane(pixels, image, 1, across, down, H, W, ROWS, COLUMNS)
    blue = load_plane(pixels, image, 2, across, down, H, W, ROWS, COLUMNS)
    inside = (pos < S)[:, None] & (pos < S)[None, :]

    if JITTER:
        jitter = uniform(key, u + 6) < jitter_share
        code = (24 * uniform(key, u + 8)).to(tl.int32)
        first_kind = code // 8
        second_kind = (first_kind + 1 + code // 4 % 2) % 3
        kinds = first_kind + 4 * second_kind + 16 * (3 - first_kind - second_kind)  # two bits each
        hue_at = code % 4
        bright = 1 + (2 * uniform(key, u + 2) - 1) * brightness
        contrasted = 1 + (2 * uniform(key, u + 3) - 1) * contrast
        saturated = 1 + (2 * uniform(key, u + 4) - 1) * saturation
        for step in tl.static_range(4):  # the hue comes before step hue_at
            if HUE:
                r, g, b = shift_hue(red, green, blue, (2 * uniform(key, u + 7) - 1) * hue_spread)
                here = jitter & (hue_at == step)
                red, green = tl.where(here, r, red), tl.where(here, g, green)
                blue = tl.where(here, b, blue)
            if step < 3:
                kind = (kinds >> (2 * step)) & 3
                factor = tl.where(kind == SATURATION, saturated, bright)
                factor = tl.where(jitter, tl.where(kind == CONTRAST, contrasted, factor), 1.0)
                red, green, blue = blend(red, green, blue, kind, factor, inside, S)
    if GRAYSCALE:
        gray = gray_of(red, green, blue)
        wanted = uniform(key, u + 9) < gray_share
        red, green = tl.where(wanted, gray, red), tl.where(wanted, gray, green)
        blue = tl.where(wanted, gray, blue)
    if BLUR:
        sigma = sigma_low + sigma_spread * uniform(key, u + 11)
        sigma = tl.where(uniform(key, u + 10) < blur_share, sigma, 0.0)
        g = blur_matrix(sigma, S, SIDE)
        turned_g = tl.trans(g)
        red = clip(product(g, product(red, turned_g)))
        green = clip(product(g, product(green, turned_g)))
        blue = clip(product(g, product(blue, turned_g)))

    solarize = uniform(key, u + 12) < solarize_share
    at = (tl.program_id(0) * S * S + pos[:, None] * S + pos[None, :]) * 3  # channels last
    store_plane(x, red, at, inside, solarize, mean, std)
    store_plane(x, green, at + 1, inside, solarize, mean + 1, std + 1)
    store_plane(x, blue, at + 2, inside, solarize, mean + 2, std + 2)


def fits(views: Views, size: tuple[int, int]) -> bool:
    """Whether a view of an image of this size fits into the registers of a program."""
    return max(views.size, *size) <= MAX_SIDE


def make_views(
    pixels: Tensor, index: Tensor, epoch: Tensor, seed: Tensor, views: Views, mean: Tensor,
    std: Tensor,
) -> Tensor:
    """Normalized views float32 [2B, 3, S, S], channels last, of pixels uint8 [B, 3, H, W]."""
    count, _, rows, columns = pixels.shape
    size = views.size
    layout = torch.channels_last
    x = torch.empty(2 * count, 3, size, size, device=pixels.device, memory_format=layout)
    logs = [math.log(ratio) for ratio in views.crop_ratio]
    height, width = augment.central_crop(views, (rows, columns))
    make_view[(2 * count,)](
        pixels.contiguous(), index, epoch, seed, mean, std, x, count,
        views.crop_scale[0], views.crop_scale[1] - views.crop_scale[0],
        logs[0], logs[1] - logs[0], height, width, views.flip, views.jitter,
        views.brightness, views.contrast, views.saturation, views.hue, views.grayscale,
        views.blur, views.blur_sigma[0], views.blur_sigma[1] - views.blur_sigma[0], views.solarize,
        views.jitter > 0, views.hue > 0, views.grayscale > 0, views.blur > 0,
        views.interpolation == "bilinear", rows, columns, size,
        *(max(16, triton.next_power_of_2(side)) for side in (rows, columns, size)),
    )
    return x
