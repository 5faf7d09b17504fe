"""Commands around readable codes: fit, embed, export."""

from pathlib import Path

from bayesncl.cli import common
from bayesncl.cli.common import arg, flag, opt, out_file
from bayesncl.errors import InputError
from bayesncl.io import is_codes

ENCODER = "A timm model (default: DINO ViT-S/16), FILE.onnx, MODULE:FUNCTION or a run."
IMAGES = "A folder, an image or an array file. Default for codes: the fitted rows."
FORMATS = ".npz, .csv, .parquet, .sparsevec.csv or .jsonl."


def fit(
    source: Path = arg("SOURCE", "A folder of photos, an array file, or a run."),
    out: Path = opt("DIR", "Folder to write.", "-o", "--out", default=...),
    encoder: str | None = opt("NAME", ENCODER),
    weights: Path | None = opt("FILE", "Encoder weights (.safetensors, .pt)."),
    size: int | None = opt("N", "Input side in pixels (default: the encoder's).", min=1, max=4096),
    mean: str | None = opt("R,G,B", "Channel means (default: the encoder's)."),
    std: str | None = opt("R,G,B", "Channel deviations (default: the encoder's)."),
    mirror: bool | None = flag(
        "--mirror/--no-mirror", "Average each photo with its mirror image.", None
    ),
    method: str = opt(
        "NAME", "prototypes, factors, ncl, bayesncl, sae or csr.", default="prototypes"
    ),
    components: int | None = opt("N", "Number of dimensions (default: by image count).", min=1),
    active: int | None = common.ACTIVE,
    labels: Path | None = opt("FILE", "Class labels for the verdict: a table or .npy."),
    images: Path | None = opt("DIR", "For an array: folder of the images its rows name."),
    seed: int = opt("N", "Random seed.", default=0, min=0, max=2**32 - 1),
    fresh: bool = flag("--fresh", "Embed all photos again."),
    device: str = common.DEVICE,
    quiet: bool = common.QUIET,
) -> None:
    """Fit sparse, readable codes to photos or embeddings.

    A code describes an image by a few strong dimensions, which you can look at and name in the
    atlas. Prints a verdict: how readable the dimensions are.
    """
    display = common.open_display(quiet)
    from bayesncl.codes.encoders import Request
    from bayesncl.codes.fit import Options
    from bayesncl.codes.fit import fit as fit_codes
    from bayesncl.device import find_device

    channels = parse_triple("--mean", mean), parse_triple("--std", std)
    request = Request(encoder or "", str(weights) if weights else None, size, *channels, mirror)
    named = None if request == Request("") else request
    options = Options(method, components, active, seed, named, labels, images, fresh)
    with common.stoppable(display, KeyboardInterrupt, "stopped; run the same command to continue"):
        fit_codes(source, out, options, find_device(device), display)


def parse_triple(name: str, text: str | None) -> tuple[float, ...] | None:
    """Parse one number per channel, or one for all three."""
    if text is None:
        return None
    try:
        numbers = tuple(map(float, text.split(",")))
    except ValueError:
        numbers = ()
    if len(numbers) not in (1, 3):
        raise InputError(f"{name}: expected three numbers such as 0.485,0.456,0.406, got {text!r}")
    return numbers * 3 if len(numbers) == 1 else numbers


def embed(
    run: Path = common.TRAINED,
    images: Path | None = arg("IMAGES", IMAGES, None),
    out: Path = out_file("FILE", FORMATS, "-o", "--out", default=Path("embedding.npz")),
    active: int | None = common.ACTIVE,
    ungated: bool = flag("--ungated", "For a run: write the features before the gates."),
    names: Path | None = opt("FILE", "Names of the columns (default: RUN/names.json)."),
    long: bool = flag("--long", "Write one row per image and active dimension."),
    encoder: str | None = common.ENCODER_AGAIN,
    device: str = common.DEVICE,
    quiet: bool = common.QUIET,
) -> None:
    """Write features or codes of images to a file."""
    display = common.open_display(quiet)
    from bayesncl.codes.embed import embed_images
    from bayesncl.codes.open import load
    from bayesncl.device import find_device
    from bayesncl.inputs import ENDINGS
    from bayesncl.progress import plural

    if is_codes(run):
        common.refuse_for_codes(run, ungated=ungated)
    model = load(run, find_device(device), encoder=encoder)
    count, width = embed_images(
        model, images, out, n_active=active, gated=not ungated, names=names, long=long,
        progress=display.count,
    )
    display.close()
    noun = "row" if images is None or images.suffix.lower() in ENDINGS else "image"
    display.note(f"{out}: {plural(count, noun)} x {width:,} dimensions")


def export(
    run: Path = common.TRAINED,
    out: Path = out_file("FILE.onnx", "File to write.", "-o", "--out", default=Path("model.onnx")),
    head: bool = flag("--head", "For codes: export only the head, which takes embeddings."),
    encoder: str | None = common.ENCODER_AGAIN,
    quiet: bool = common.QUIET,
) -> None:
    """Export a run or codes to ONNX.

    Compares the output of the file with torch's.
    """
    display = common.open_display(quiet)
    from bayesncl.codes.export import export as export_model
    from bayesncl.codes.open import load

    model = load(run, encoder=encoder)
    display.busy("exporting")
    outputs, error = export_model(model, out, head=head)
    display.close()
    display.note(f"{out}: outputs {' and '.join(outputs)}; largest difference to torch {error:.1g}")
