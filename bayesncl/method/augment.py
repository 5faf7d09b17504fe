"""Two random views of every image in a batch, computed on the device of the pixels.

`draw` draws the parameters of each view, `apply` computes the views from them, `make_views` does
both. The operations are those of torchvision's transforms on Pillow images, in the order of the
published experiments (crop, color jitter, grayscale, blur, solarize, flip), on floats instead of
8-bit integers. No step waits for the host or has a data-dependent shape, so all of it compiles and
runs in a CUDA graph.

Shapes: B images, N = 2B views, S the side of a view; rows i and i + B are the views of image i.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bayesncl.method import rng
from bayesncl.recipes import Views

BRIGHTNESS, CONTRAST, SATURATION = range(3)
CROP_ATTEMPTS = 10
BLUR_PASSES = 3
GRAY = (0.299, 0.587, 0.114)  # weight of red, green, blue in the gray value (ITU-R 601)

Planes = Sequence[Tensor]  # red, green, blue


class Params(NamedTuple):
    """Parameters of N views; every field has N rows."""

    top: Tensor  # int64 [N], crop in pixels of the stored image
    left: Tensor
    height: Tensor
    width: Tensor
    flip: Tensor  # bool [N]
    jitter: Tensor  # bool [N]
    factors: Tensor  # float32 [N, 3], of brightness, contrast, saturation
    hue: Tensor  # float32 [N], in turns
    order: Tensor  # int64 [N, 3], order of brightness, contrast and saturation
    hue_at: Tensor  # int64 [N], how many of those three precede the hue, 0 to 3
    gray: Tensor  # bool [N]
    blur: Tensor  # bool [N]
    sigma: Tensor  # float32 [N], pixels of the view
    solarize: Tensor  # bool [N]


def draw(
    views: Views, index: Tensor, epoch: int | Tensor, seed: int | Tensor, size_in: tuple[int, int]
) -> Params:
    """Draw the parameters of both views of images `index` (int64 [B], positions in the dataset).

    They depend only on index, epoch and seed; `size_in` is the stored height and width.
    """
    key = torch.cat([rng.make_key(seed, epoch, index, stream=view) for view in range(2)])
    u = rng.uniform(key, 2 * CROP_ATTEMPTS + 13)
    u_area, u_ratio, u = u.split([CROP_ATTEMPTS, CROP_ATTEMPTS, 13], dim=1)
    u_place, u_factors, u = u.split([2, 3, 8], dim=1)
    u_flip, u_jitter, u_hue, u_order, u_gray, u_blur, u_sigma, u_solarize = u.unbind(1)

    low, high = views.blur_sigma
    # 6 orders of three operations times 4 positions of the hue: the 24 orders of four
    code = (24 * u_order).long()
    first = code // 8
    second = (first + 1 + code // 4 % 2) % 3
    spreads = (views.brightness, views.contrast, views.saturation)
    spread = torch.stack([torch.full_like(u_hue, s) for s in spreads], 1)
    return Params(
        *_draw_crop(views, u_area, u_ratio, u_place, size_in),
        flip=u_flip < views.flip,
        jitter=u_jitter < views.jitter,
        factors=1 + (2 * u_factors - 1) * spread,
        hue=(2 * u_hue - 1) * views.hue,
        order=torch.stack([first, second, 3 - first - second], 1),
        hue_at=code % 4,
        gray=u_gray < views.grayscale,
        blur=u_blur < views.blur,
        sigma=low + (high - low) * u_sigma,
        solarize=u_solarize < views.solarize,
    )


def _draw_crop(
    views: Views, u_area: Tensor, u_ratio: Tensor, u_place: Tensor, size_in: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """torchvision's RandomResizedCrop: the first of ten crops that fits, else a central one."""
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
    top = (u_place[:, 0] * (rows - height + 1)).long()
    left = (u_place[:, 1] * (columns - width + 1)).long()
    top = torch.where(found[:, 0], top, (rows - central_height) // 2)
    left = torch.where(found[:, 0], left, (columns - central_width) // 2)
    return top, left, height, width


def central_crop(views: Views, size_in: tuple[int, int]) -> tuple[int, int]:
    """Height and width of the largest crop with an allowed aspect ratio."""
    rows, columns = size_in
    if columns / rows < views.crop_ratio[0]:
        return round(columns / views.crop_ratio[0]), columns
    if columns / rows > views.crop_ratio[1]:
        return rows, round(rows * views.crop_ratio[1])
    return rows, columns


def apply(pixels: Tensor, params: Params, views: Views) -> Tensor:
    """Both views of pixels uint8 [B, 3, H, W]: float32 [N, 3, S, S] in [0, 1], not normalized.

    `params` come from `draw` with the same `views`. Operations of probability 0 are skipped.
    """
    count = len(pixels)
    # Internally the two views of an image are adjacent and images are [column, channel, row]: every
    # product below takes its matrices as stored, and both views read the same copy of the pixels.
    params = Params(*(p.unflatten(0, (2, count)).transpose(0, 1).flatten(0, 1) for p in params))
    x = _crop(pixels, params, views)
    rgb: Planes = x.unbind(2)  # [N, S, S] each
    if views.jitter > 0:
        rgb = _jitter(rgb, params, views)
    if views.grayscale > 0:
        share = params.gray.to(x.dtype).view(-1, 1, 1)
        rgb = _blend(rgb, 1 - share, share * _gray(rgb))
    x = torch.stack(tuple(rgb), 2)
    x = _blur(x, params) if views.blur > 0 else x.permute(0, 2, 3, 1)  # [N, channel, row, column]
    if views.solarize > 0:
        x = torch.where(params.solarize.view(-1, 1, 1, 1) & (x >= 0.5), 1 - x, x)
    return x.unflatten(0, (count, 2)).transpose(0, 1).reshape(2 * count, 3, views.size, views.size)


def make_views(
    pixels: Tensor, index: Tensor, epoch: int | Tensor, seed: int | Tensor, views: Views
) -> Tensor:
    """Draw both views of every image: float32 [2B, 3, S, S] in [0, 1], not normalized."""
    height, width = pixels.shape[-2:]
    return apply(pixels, draw(views, index, epoch, seed, (height, width)), views)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Batched a @ b; on a GPU in half precision, whose 11 bits suffice for 8-bit pixels."""
    if a.is_cuda:
        return torch.bmm(a.half(), b.half()).float()
    return torch.bmm(a, b)


def _crop(pixels: Tensor, params: Params, views: Views) -> Tensor:
    """Crop, resize and flip: x = W_x image W_y^T per channel, [N, S, 3, S] from [B, 3, H, W].

    The later operations are symmetric in left and right, so the flip is free here.
    """
    count, _, rows, columns = pixels.shape
    across = _resampling(params.left, params.width, columns, views, params.flip)  # [N, S, W]
    down = _resampling(params.top, params.height, rows, views)  # [N, S, H]
    image = pixels.reshape(count, 3 * rows, columns).float() / 255
    x = _product(across.view(count, 2 * views.size, columns), image.transpose(1, 2))
    # bicubic weights overshoot; like Pillow, clip after each direction, columns first
    x = x.view(2 * count, views.size * 3, rows).clamp_(0, 1)
    x = _product(x, down.transpose(1, 2)).clamp_(0, 1)
    return x.view(2 * count, views.size, 3, views.size)


def _resampling(
    start: Tensor, length: Tensor, size_in: int, views: Views, flip: Tensor | None = None
) -> Tensor:
    """Pillow's weights for resizing pixels start .. start + length - 1 to S, [N, S, size_in].

    Output pixel i is centered at (i + 1/2) scale, scale = length / S; when shrinking, the kernel
    is `scale` wide. Pixels outside the crop have weight 0; rows sum to 1.
    """
    out = torch.arange(views.size, device=start.device)
    if flip is not None:
        out = torch.where(flip.unsqueeze(1), views.size - 1 - out, out)
    start, length = start.unsqueeze(1), length.unsqueeze(1)  # [N, 1]
    scale = length / views.size
    stretch = scale.clamp(min=1)
    center = (out + 0.5) * scale / stretch  # [N, S]
    place = torch.arange(size_in, device=start.device) - start  # [N, size_in]
    inside = (place >= 0) & (place < length)
    place = torch.where(inside, (place + 0.5) / stretch, 1e6)  # so far that the kernel is 0
    distance = (place.unsqueeze(1) - center.unsqueeze(2)).abs_()
    if views.interpolation == "bilinear":
        weight = (1 - distance).clamp_(min=0)
    else:
        # Keys' cubic with a = -1/2: u^2 (u - 1) / 2 + v^2 (1 - 2v), u = (2 - d)+, v = (1 - d)+
        u = (2 - distance).clamp_(min=0)
        v = (u - 1).clamp_(min=0)
        weight = (0.5 * u - 0.5).mul_(u).mul_(u).add_((1 - 2 * v).mul_(v).mul_(v))
    return weight.div_(weight.sum(2, keepdim=True))


def _gray(rgb: Planes) -> Tensor:
    return (GRAY[0] * rgb[0]).add_(rgb[1], alpha=GRAY[1]).add_(rgb[2], alpha=GRAY[2])


def _blend(rgb: Planes, a: Tensor, base: Tensor) -> Planes:
    """clip(a x + base) for each channel x."""
    return [(a * x).add_(base).clamp_(0, 1) for x in rgb]


def _jitter(rgb: Planes, params: Params, views: Views) -> Planes:
    """Brightness, contrast, saturation and hue in the order drawn for each view.

    With factor f, the first three are x' = clip(f x + (1 - f) t) with target t black, the mean
    gray of the image (Pillow rounds it) and the gray of the pixel. One formula covers them:
    x' = clip(a x + b gray(x) + c mean(gray(x))), with coefficients per view. The hue shift comes
    after 0 to 3 of them; three steps before and three after it, some idle, compute it only once.
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
        gray = _gray(rgb)
        mean = gray.mean((1, 2), keepdim=True)
        a_step, b_step, c_step = (k[:, step].view(-1, 1, 1) for k in (a, b, c))
        rgb = _blend(rgb, a_step, gray.mul_(b_step).add_(c_step * mean))
    return rgb


def _shift_hue(rgb: Planes, turns: Tensor) -> Planes:
    """Shift the hue of HSV, keeping saturation and value.

    With hue t in sixths of a turn, low = min(r, g, b), chroma = max - low: red is
    low + chroma clip(|t - 3| - 1), green low + chroma clip(2 - |t - 2|), blue the same with t - 4.
    """
    red, green, blue = rgb
    high = torch.maximum(torch.maximum(red, green), blue)
    low = torch.minimum(torch.minimum(red, green), blue)
    chroma = high - low
    from_green = torch.add(blue - red, chroma, alpha=2)
    side = torch.where(high == green, from_green, torch.add(red - green, chroma, alpha=4))
    t = torch.where(high == red, green - blue, side).div_(chroma.clamp(min=1e-8))  # in [-1, 5]
    t = t.add_(6 * turns.view(-1, 1, 1))
    t = t.sub_((t / 6).floor_(), alpha=6)
    red = torch.addcmul(low, chroma, ((t - 3).abs_() - 1).clamp_(0, 1))
    green = torch.addcmul(low, chroma, (2 - (t - 2).abs_()).clamp_(0, 1))
    return red, green, torch.addcmul(low, chroma, (2 - (t - 4).abs_()).clamp_(0, 1))


def _blur(x: Tensor, params: Params) -> Tensor:
    """Pillow's GaussianBlur, x' = G x G^T per channel, [N, column, 3, row] to [N, 3, row, column].

    Pillow approximates the Gaussian by three passes of a box of real-valued width that repeats the
    edge pixels (Gwosdek et al., 2011); G is the cube of the matrix of one pass, 1 without blur.
    """
    count, size = x.shape[:2]
    variance = (torch.where(params.blur, params.sigma, 0.0) ** 2 / BLUR_PASSES).view(-1, 1, 1)
    whole = torch.floor((torch.sqrt(12 * variance + 1) - 1) / 2)
    excess = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance)
    radius = whole + excess / (6 * (variance - (whole + 1) ** 2))
    # Pixel j has weight clip(radius + 1 - |i - j|) in output i; edge pixels also have the weights
    # of all pixels beyond them, which sum to what the upper clip removes.
    position = torch.arange(size, device=x.device)
    reach = (radius + 1 - (position.unsqueeze(1) - position).abs()).clamp_(min=0)  # [N, i, j]
    at_edge = (position == 0) | (position == size - 1)
    box = torch.where(at_edge, reach, reach.clamp(max=1)) / (2 * radius + 1)
    g = _product(_product(box, box), box)
    x = _product(x.view(count, size * 3, size), g.transpose(1, 2)).view(count, size, 3 * size)
    # rows of G sum to 1 up to rounding
    return _product(x.transpose(1, 2), g.transpose(1, 2)).clamp_(0, 1).view(count, 3, size, size)
