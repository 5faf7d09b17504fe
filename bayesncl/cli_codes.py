"""The commands around readable codes: fit, embed, export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from . import cli
from .cli import app
from .errors import InputError, one_line
from .files import is_codes
from .options import Device, Quiet, Trained, written

if TYPE_CHECKING:
    from .progress import Display

Encoder = Annotated[
    str | None,
    Option(
        "--encoder", metavar="E", help="a timm model by name, FILE.onnx, MODULE:FUNCTION (a torch module), or a run"
    ),
]
Again = Annotated[str | None, Option("--encoder", metavar="MODULE:FUNCTION", help="the same as for fit, if it was one")]
METHODS = "prototypes, ncl, bayesncl, sae, csr"  # of heads.HEADS, which waits for torch


@app.command()
def fit(
    source: Annotated[Path, Argument(metavar="SOURCE", help="a folder of photos, an array file, or a finished run")],
    out: Annotated[Path, Option("-o", "--out", metavar="DIR", help="the folder to write")],
    encoder: Encoder = None,
    weights: Annotated[Path | None, Option(metavar="FILE", help="weights of the encoder, .safetensors or .pt")] = None,
    size: Annotated[int | None, Option(min=1, max=4096, help="pixels a side the encoder takes, if not its own")] = None,
    mean: Annotated[str | None, Option(metavar="R,G,B", help="of normalisation, if not its own")] = None,
    std: Annotated[str | None, Option(metavar="R,G,B", help="of normalisation, if not its own")] = None,
    mirror: Annotated[
        bool | None, Option("--mirror/--no-mirror", help="embed photos with mirror images; default for runs that flip")
    ] = None,
    method: Annotated[str, Option(help=METHODS)] = "prototypes",
    dim: Annotated[int | None, Option(min=1, help="dimensions; default by the number of images")] = None,
    keep: Annotated[int | None, Option(min=1, help="an image keeps its strongest dimensions")] = None,
    labels: Annotated[Path | None, Option(metavar="FILE", help="labels to judge by: a table, or .npy of y")] = None,
    images: Annotated[Path | None, Option(metavar="DIR", help="where the images of an array lie, by name")] = None,
    seed: Annotated[int, Option(min=0, max=2**32 - 1)] = 0,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Readable codes of photos through any encoder, or of embeddings. Stop it at any time: the same command resumes."""
    asked = {"size": size, "mean": parse_colours("--mean", mean), "std": parse_colours("--std", std), "mirror": mirror}
    display = cli.open_display(quiet)
    from .encoders import Request
    from .fit import Options
    from .fit import fit as fit_codes

    request = None
    if encoder is not None or weights is not None or any(value is not None for value in asked.values()):
        request = Request(encoder or "", None if weights is None else str(weights), **asked)  # type: ignore[arg-type]
    options = Options(method, dim, keep, seed, request, labels, images)
    display.busy(f"looking at {one_line(str(source))}")
    with cli.interruptible(display, "stopped; the same command resumes from here", KeyboardInterrupt):
        fit_codes(source, out, options, cli.open_device(device), display)


def parse_colours(name: str, text: str | None) -> tuple[float, ...] | None:
    """Three numbers, or one for all three."""
    if text is None:
        return None
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if len(found) not in (1, 3):
        raise InputError(f"{name} takes three numbers such as 0.485,0.456,0.406, got {text!r}")
    return found * 3 if len(found) == 1 else found


@app.command()
def embed(
    run: Trained,
    images: Annotated[
        Path, Argument(metavar="IMAGES", help="a folder of images, or one; for codes also an array file")
    ],
    out: Annotated[
        Path, written("-o", "--out", metavar="FILE", help=".npz (z [N, D], names, y), .csv or .parquet")
    ] = Path("embedding.npz"),
    keep: Annotated[int | None, Option(min=1, help="keep only each image's strongest dimensions")] = None,
    ungated: Annotated[bool, Option("--ungated", help="features before the gates")] = False,
    names: Annotated[Path | None, Option(metavar="FILE", help="names.json from the atlas: named columns")] = None,
    encoder: Again = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Write features or codes of your own images to a file."""
    display = cli.open_display(quiet)
    from .arrays import ENDINGS
    from .embed import embed_images
    from .progress import plural

    if ungated and is_codes(run):
        raise InputError("--ungated is for trained runs; codes have no version without gates")
    model = open_model(run, device, encoder, display)
    count, width = embed_images(model, images, out, keep=keep, gated=not ungated, names=names, progress=display.count)
    display.close()
    what = "row" if images.suffix.lower() in ENDINGS else "image"
    display.note(f"{out}: {plural(count, what)} x {width:,} dimensions")


@app.command()
def export(
    run: Trained,
    out: Annotated[Path, written("-o", "--out", metavar="FILE.onnx")] = Path("model.onnx"),
    head: Annotated[bool, Option("--head", help="of codes of photos only the part from embeddings on")] = False,
    encoder: Again = None,
    quiet: Quiet = False,
) -> None:
    """A run or codes as an ONNX file, compared with torch."""
    display = cli.open_display(quiet)
    from .export import export as export_model

    model = open_model(run, "cpu", encoder, display)
    display.busy("exporting")
    outputs, worst = export_model(model, out, head=head)
    display.close()
    display.note(f"{out}: gives {' and '.join(outputs)}; differs from torch by {worst:.1g} at most")


def open_model(run: Path, device: str | None, encoder: str | None, display: Display) -> Any:
    """A trained run, as far as it has come, or codes."""
    from .checkpoint import open_model as open_run
    from .model import load

    place = cli.open_device(device)
    if is_codes(run):
        return load(run, place, encoder=encoder)
    if encoder is not None:
        raise InputError(f"--encoder goes with codes that fit wrote; {run} is its own encoder")
    model, remark = open_run(run, place)
    if remark:
        display.note(remark)
    return model


def show_codes(
    folder: Path, files: dict[str, Path | None], everything: bool, display: Display, given: dict[str, Any], save: bool
) -> None:
    """Measure a folder of codes, print the verdict, write what was asked for; `given` are options of no use here."""
    from .codes_folder import CodesFolder
    from .fit import measure_codes
    from .report.tables import show

    if unused := [option for option, value in given.items() if value]:
        raise InputError(f"{folder} holds codes, which bring their own labels and embeddings: leave out {unused[0]}")
    spectrum = save or everything or any(files.values())
    display.busy("measuring")
    result = measure_codes(folder, spectrum=spectrum, everything=everything, progress=display.count)
    display.close()
    here = CodesFolder(folder)
    try:
        if save:
            here.write(here.evaluation_file, result.to_json())
    finally:  # a folder that cannot be written to does not cost the results
        show(result, files, everything)
