"""Two random views of every image of a batch, made on the device the pixels are on.

`draw` gives each view its own parameters, `apply` makes the views from them, `make_views` does both. The operations
are those of torchvision's transforms on Pillow images, in the order of the published experiments (crop, colour
jitter, greyscale, blur, solarise, flip), computed on floats without Pillow's rounding to 8 bits between operations.
No step needs the host or a shape that depends on data, so everything compiles and fits in a CUDA graph.

Shapes: B images, N = 2B views, S the side of a view. In parameters and results rows i and i + B are the two views of
image i.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from . import draws
from .files import write_saved
from .recipes import Views

BRIGHTNESS, CONTRAST, SATURATION = range(3)
CROP_ATTEMPTS = 10
BLUR_PASSES = 3
GREY = (0.299, 0.587, 0.114)  # weight of red, green, blue in the grey value (ITU-R 601)

Planes = tuple[Tensor, Tensor, Tensor]  # red, green, blue


class Params(NamedTuple):
    """Parameters of N views; every field has N rows. Probabilities have become booleans."""

    top: Tensor  # int64 [N], the crop in pixels of the stored image
    left: Tensor
    height: Tensor
    width: Tensor
    flip: Tensor  # bool [N]
    jitter: Tensor  # bool [N]
    factors: Tensor  # float32 [N, 3], of brightness, contrast, saturation
    hue: Tensor  # float32 [N], in turns
    order: Tensor  # int64 [N, 3], brightness, contrast and saturation in the order they are applied
    hue_at: Tensor  # int64 [N], how many of those three come before the hue, 0 to 3
    grey: Tensor  # bool [N]
    blur: Tensor  # bool [N]
    sigma: Tensor  # float32 [N], pixels of the view
    solarise: Tensor  # bool [N]


def draw(views: Views, index: Tensor, epoch: int | Tensor, seed: int | Tensor, size_in: tuple[int, int]) -> Params:
    """Draw the parameters of both views of some images, N = 2B rows.

    They depend on `index`, the number of each image in the data set (int64 [B]), on epoch and seed, and on nothing
    else; `size_in` is height and width of the stored images.
    """
    key = torch.cat([draws.make_key(seed, epoch, index, stream=view) for view in range(2)])
    u = draws.uniform(key, 2 * CROP_ATTEMPTS + 13)
    u_area, u_ratio, u = u.split([CROP_ATTEMPTS, CROP_ATTEMPTS, 13], dim=1)
    u_place, u_factors, u = u.split([2, 3, 8], dim=1)
    u_flip, u_jitter, u_hue, u_order, u_grey, u_blur, u_sigma, u_solarise = u.unbind(1)

    low, high = views.blur_sigma
    # one of 6 orders of three operations times one of 4 places of the hue among them: the 24 orders of four
    code = (24 * u_order).long()
    first = code // 8
    second = (first + 1 + code // 4 % 2) % 3
    spread = torch.stack([torch.full_like(u_hue, s) for s in (views.brightness, views.contrast, views.saturation)], 1)
    return Params(
        *_draw_crop(views, u_area, u_ratio, u_place, size_in),
        flip=u_flip < views.flip,
        jitter=u_jitter < views.jitter,
        factors=1 + (2 * u_factors - 1) * spread,
        hue=(2 * u_hue - 1) * views.hue,
        order=torch.stack([first, second, 3 - first - second], 1),
        hue_at=code % 4,
        grey=u_grey < views.greyscale,
        blur=u_blur < views.blur,
        sigma=low + (high - low) * u_sigma,
        solarise=u_solarise < views.solarise,
    )


def _draw_crop(
    views: Views, u_area: Tensor, u_ratio: Tensor, u_place: Tensor, size_in: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """torchvision's RandomResizedCrop: up to ten tries of an area and an aspect ratio, else a central crop."""
    rows, columns = size_in
    low, high = views.crop_scale
    area = rows * columns * (low + (high - low) * u_area)  # [N, attempts]
    log_low, log_high = math.log(views.crop_ratio[0]), math.log(views.crop_ratio[1])
    ratio = torch.exp(log_low + (log_high - log_low) * u_ratio)
    width = torch.round(torch.sqrt(area * ratio)).long()
    height = torch.round(torch.sqrt(area / ratio)).long()
    fits = (width > 0) & (width <= columns) & (height > 0) & (height <= rows)
    attempt = torch.arange(CROP_ATTEMPTS, device=area.device)
    first = torch.where(fits, attempt, CROP_ATTEMPTS).amin(1, keepdim=True)
    found = first < CROP_ATTEMPTS
    first = first.clamp(max=CROP_ATTEMPTS - 1)

    central_height, central_width = central_crop(views, size_in)
    width = torch.where(found, width.gather(1, first), central_width).squeeze(1)
    height = torch.where(found, height.gather(1, first), central_height).squeeze(1)
    # u * n < n also in float32: u is at most 1 - 2^-24
    top = torch.where(found[:, 0], (u_place[:, 0] * (rows - height + 1)).long(), (rows - central_height) // 2)
    left = torch.where(found[:, 0], (u_place[:, 1] * (columns - width + 1)).long(), (columns - central_width) // 2)
    return top, left, height, width


def central_crop(views: Views, size_in: tuple[int, int]) -> tuple[int, int]:
    """Height and width of the largest crop whose aspect ratio is allowed."""
    rows, columns = size_in
    if columns / rows < views.crop_ratio[0]:
        return round(columns / views.crop_ratio[0]), columns
    if columns / rows > views.crop_ratio[1]:
        return rows, round(rows * views.crop_ratio[1])
    return rows, columns


def apply(pixels: Tensor, params: Params, views: Views) -> Tensor:
    """Make both views of every image, uint8 [B, 3, H, W], from parameters that `draw` made of the same `views`.

    Float32 [N, 3, S, S] in [0, 1], not normalised. An operation of probability 0 is left out altogether.
    """
    count = len(pixels)
    # Inside, the two views of an image are neighbours and images lie as [column, channel, row]: then every product
    # below takes its matrices as they lie in memory, and both views read the same copy of the pixels.
    params = Params(*(p.unflatten(0, (2, count)).transpose(0, 1).flatten(0, 1) for p in params))
    x = _crop(pixels, params, views)
    red, green, blue = x.unbind(2)
    rgb: Planes = (red, green, blue)  # [N, S, S] each
    if views.jitter > 0:
        rgb = _jitter(rgb, params, views)
    if views.greyscale > 0:
        share = params.grey.to(x.dtype).view(-1, 1, 1)
        rgb = _blend(rgb, 1 - share, share * _grey(rgb))
    x = torch.stack(rgb, 2)
    x = _blur(x, params) if views.blur > 0 else x.permute(0, 2, 3, 1)  # [N, channel, row, column]
    if views.solarise > 0:
        x = torch.where(params.solarise.view(-1, 1, 1, 1) & (x >= 0.5), 1 - x, x)
    return x.unflatten(0, (count, 2)).transpose(0, 1).reshape(2 * count, 3, views.size, views.size)


def make_views(pixels: Tensor, index: Tensor, epoch: int | Tensor, seed: int | Tensor, views: Views) -> Tensor:
    """Draw and make both views of every image: `apply` of `draw`, float32 [2B, 3, S, S] in [0, 1], not normalised."""
    height, width = pixels.shape[-2:]
    return apply(pixels, draw(views, index, epoch, seed, (height, width)), views)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b of batches; on a GPU in half precision, whose 11 bits are ample for pixels of 8, on the tensor cores."""
    if a.is_cuda:
        return torch.bmm(a.half(), b.half()).float()
    return torch.bmm(a, b)


def _crop(pixels: Tensor, params: Params, views: Views) -> Tensor:
    """Crop, resize and flip: x = W_x image W_y^T per channel, [N, S, 3, S] from [B, 3, H, W].

    Every later operation treats left and right alike, so the flip can come first, where it costs nothing.
    """
    count, _, rows, columns = pixels.shape
    across = _resampling(params.left, params.width, columns, views, params.flip)  # [N, S, W]
    down = _resampling(params.top, params.height, rows, views)  # [N, S, H]
    image = pixels.reshape(count, 3 * rows, columns).float() / 255
    x = _product(across.view(count, 2 * views.size, columns), image.transpose(1, 2))
    # bicubic weights overshoot; Pillow, too, clips after each direction, columns first
    x = x.view(2 * count, views.size * 3, rows).clamp_(0, 1)
    x = _product(x, down.transpose(1, 2)).clamp_(0, 1)
    return x.view(2 * count, views.size, 3, views.size)


def _resampling(start: Tensor, length: Tensor, size_in: int, views: Views, flip: Tensor | None = None) -> Tensor:
    """Weights of Pillow's resize of pixels start .. start + length - 1 to S pixels, [N, S, size_in].

    Output pixel i has its centre at (i + 1/2) scale, scale = length / S; when shrinking the kernel is `scale` wide.
    Pixels outside the crop get no weight and each row sums to 1.
    """
    out = torch.arange(views.size, device=start.device)
    if flip is not None:
        out = torch.where(flip.unsqueeze(1), views.size - 1 - out, out)
    start, length = start.unsqueeze(1), length.unsqueeze(1)  # [N, 1]
    scale = length / views.size
    stretch = scale.clamp(min=1)
    centre = (out + 0.5) * scale / stretch  # [N, S]
    place = torch.arange(size_in, device=start.device) - start  # [N, size_in]
    inside = (place >= 0) & (place < length)
    place = torch.where(inside, (place + 0.5) / stretch, 1e6)  # so far away that the kernel is 0
    distance = (place.unsqueeze(1) - centre.unsqueeze(2)).abs_()
    if views.interpolation == "bilinear":
        weight = (1 - distance).clamp_(min=0)
    else:
        # Keys' cubic with a = -1/2, without branches: with u = (2 - d)+ and v = (1 - d)+ it is
        # u^2 (u - 1) / 2 + v^2 (1 - 2v)
        u = (2 - distance).clamp_(min=0)
        v = (u - 1).clamp_(min=0)
        weight = (0.5 * u - 0.5).mul_(u).mul_(u).add_((1 - 2 * v).mul_(v).mul_(v))
    return weight.div_(weight.sum(2, keepdim=True))


def _grey(rgb: Planes) -> Tensor:
    return (GREY[0] * rgb[0]).add_(rgb[1], alpha=GREY[1]).add_(rgb[2], alpha=GREY[2])


def _blend(rgb: Planes, a: Tensor, base: Tensor) -> Planes:
    """clip(a x + base) for each channel x."""
    red, green, blue = ((a * x).add_(base).clamp_(0, 1) for x in rgb)
    return red, green, blue


def _jitter(rgb: Planes, params: Params, views: Views) -> Planes:
    """Brightness, contrast, saturation and hue in the order drawn for each view.

    With factor f the first three are x' = clip(f x + (1 - f) t), where the target t is black, the mean grey of the
    image (not rounded to a whole number, as Pillow does) and the grey of the pixel. So one formula serves all three,
    x' = clip(a x + b grey(x) + c mean(grey(x))), with coefficients per view. The hue comes after 0 to 3 of them: three
    steps before it and three after it, idle where they are not wanted, need it only once.
    """
    factor = params.factors.gather(1, params.order)  # [N, 3], in order of application
    step = torch.arange(3, device=factor.device)
    steps_before = (step < params.hue_at.unsqueeze(1)) & params.jitter.unsqueeze(1)
    steps_after = (step >= params.hue_at.unsqueeze(1)) & params.jitter.unsqueeze(1)
    if views.hue == 0:
        return _blend_steps(rgb, params.order, factor, steps_before | steps_after)
    rgb = _blend_steps(rgb, params.order, factor, steps_before)
    rgb = _shift_hue(rgb, torch.where(params.jitter, params.hue, 0.0))
    return _blend_steps(rgb, params.order, factor, steps_after)


def _blend_steps(rgb: Planes, order: Tensor, factor: Tensor, wanted: Tensor) -> Planes:
    a = torch.where(wanted, factor, 1.0)  # [N, 3]
    b = torch.where(order == SATURATION, 1 - a, 0.0)
    c = torch.where(order == CONTRAST, 1 - a, 0.0)
    for step in range(3):
        grey = _grey(rgb)
        mean = grey.mean((1, 2), keepdim=True)
        a_step, b_step, c_step = (k[:, step].view(-1, 1, 1) for k in (a, b, c))
        rgb = _blend(rgb, a_step, grey.mul_(b_step).add_(c_step * mean))
    return rgb


def _shift_hue(rgb: Planes, turns: Tensor) -> Planes:
    """Turn the hue of HSV, keeping saturation and value.

    With the hue t in sixths of a turn, low = min(r, g, b) and chroma = max - low, a channel is
    low + chroma clip(|t - 3| - 1) for red, low + chroma clip(2 - |t - 2|) for green, with 4 for 2 in blue.
    """
    red, green, blue = rgb
    high = torch.maximum(torch.maximum(red, green), blue)
    low = torch.minimum(torch.minimum(red, green), blue)
    chroma = high - low
    side = torch.where(high == green, torch.add(blue - red, chroma, alpha=2), torch.add(red - green, chroma, alpha=4))
    t = torch.where(high == red, green - blue, side).div_(chroma.clamp(min=1e-8))  # in [-1, 5]
    t = t.add_(6 * turns.view(-1, 1, 1))
    t = t.sub_((t / 6).floor_(), alpha=6)
    red = ((t - 3).abs_() - 1).clamp_(0, 1)
    green = (2 - (t - 2).abs_()).clamp_(0, 1)
    blue = (2 - (t - 4).abs_()).clamp_(0, 1)
    return torch.addcmul(low, chroma, red), torch.addcmul(low, chroma, green), torch.addcmul(low, chroma, blue)


def _blur(x: Tensor, params: Params) -> Tensor:
    """Pillow's GaussianBlur, x' = G x G^T per channel, [N, column, 3, row] to [N, 3, row, column].

    Pillow approximates the Gaussian by three passes of a box of real-valued width (Gwosdek et al., 2011) that repeat
    the edge pixels; here G is the cube of one pass's matrix. G = 1 where there is no blur.
    """
    count, size = x.shape[:2]
    variance = (torch.where(params.blur, params.sigma, 0.0) ** 2 / BLUR_PASSES).view(-1, 1, 1)
    whole = torch.floor((torch.sqrt(12 * variance + 1) - 1) / 2)
    radius = whole + (2 * whole + 1) * (whole * (whole + 1) - 3 * variance) / (6 * (variance - (whole + 1) ** 2))
    # Pixel j has weight clip(radius + 1 - |i - j|) in output i, and the edge pixels also that of all pixels beyond
    # them, which sums to what the upper clip takes away.
    position = torch.arange(size, device=x.device)
    reach = (radius + 1 - (position.unsqueeze(1) - position).abs()).clamp_(min=0)  # [N, i, j]
    at_edge = (position == 0) | (position == size - 1)
    box = torch.where(at_edge, reach, reach.clamp(max=1)) / (2 * radius + 1)
    g = _product(_product(box, box), box)
    x = _product(x.view(count, size * 3, size), g.transpose(1, 2)).view(count, size, 3 * size)
    # rows of G sum to 1 but for rounding
    return _product(x.transpose(1, 2), g.transpose(1, 2)).clamp_(0, 1).view(count, 3, size, size)


def contact_sheet(pixels: Tensor, seed: int, views: Views, path: str | Path, epochs: int = 4) -> None:
    """Write a PNG for a person to look at: a row per image, the stored image first, then two views of each epoch."""
    size, gap = views.size, 2
    columns = [torch.nn.functional.interpolate(pixels.float() / 255, (size, size), mode="area")]
    for epoch in range(epochs):
        columns.extend(make_views(pixels, torch.arange(len(pixels)), epoch, seed, views).chunk(2))
    cells = torch.stack(columns, 1).clamp(0, 1)  # [B, columns, 3, S, S]
    cells = torch.nn.functional.pad(cells, (0, gap, 0, gap), value=1.0)
    sheet = cells.permute(0, 3, 1, 4, 2).reshape(len(pixels) * (size + gap), len(columns) * (size + gap), 3)
    image = Image.fromarray((sheet * 255).round().to(torch.uint8).cpu().numpy().astype(np.uint8))
    write_saved(path, image.save, format="PNG")
