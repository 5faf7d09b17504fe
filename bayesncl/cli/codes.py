"""Commands around readable codes, from `fit` to the jobs with fitted codes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesncl.cli import common
from bayesncl.cli.common import arg, flag, opt, out_file, out_folder
from bayesncl.errors import InputError, printable
from bayesncl.io import is_codes, write_atomic

if TYPE_CHECKING:
    from bayesncl.progress import Display

ENCODER = "A timm model (default: DINO ViT-S/16), FILE.onnx, MODULE:FUNCTION or a run folder."
IMAGES = "A folder, an image or an array file (default for codes: the fitted images)."
FORMATS = ".npz, .csv, .parquet, .sparsevec.csv or .jsonl."


def check_table_path(path: Path | None) -> Path | None:
    """Check that a .csv or .parquet can be written, before the work starts."""
    if path is not None:
        from bayesncl.codes.table import check_table

        check_table(path)
    return path


def write_found(display: Display, out: Path | None, kind: Any, found: Sequence[Any]) -> None:
    """Write named tuples of one kind as a table, if a path is given."""
    if out is not None:
        from bayesncl.codes.table import write_tuples
        from bayesncl.progress import plural

        write_tuples(out, kind, found)
        display.note(f"{out}: {plural(len(found), 'row')}")


TABLE = opt("FILE", "Write a table (.csv or .parquet).", "-o", "--out", callback=check_table_path)


def fit(
    source: Path = arg("SOURCE", "A folder of photos, an array file, or a run folder."),
    out: Path = opt("DIR", "Folder to write.", "-o", "--out", default=...),
    encoder: str | None = opt("NAME", ENCODER),
    weights: str | None = opt("FILE", "Encoder weights (.safetensors, .pt)."),
    size: int | None = opt("N", "Input size in pixels (default: the encoder's).", min=1, max=4096),
    mean: str | None = opt("R,G,B", "Channel means, for pixels in 0-1 (default: the encoder's)."),
    std: str | None = opt("R,G,B", "Channel standard deviations (default: the encoder's)."),
    mirror: bool | None = flag(
        "--mirror/--no-mirror", "Average the embeddings of each photo and its mirror image "
        "(default: only for runs trained with flips).", None,
    ),
    method: str = opt(
        "NAME", "prototypes, factors, ncl, bayesncl, sae or csr; see docs/embeddings.md.",
        default="prototypes",
    ),
    components: int | None = opt(
        "N", "Number of dimensions (default: from the data, at most about 4 sqrt(images)).", min=1
    ),
    active: int | None = common.ACTIVE,
    labels: Path | None = opt(
        "FILE", "Class labels for the verdict: a table with columns name and label, or .npy."
    ),
    images: Path | None = opt("DIR", "For an array: folder of the images its rows describe."),
    seed: int = opt("N", "Random seed.", default=0, min=0, max=2**32 - 1),
    fresh: bool = flag("--fresh", "Start over: embed all images again and fit new codes."),
    device: str = common.DEVICE, quiet: bool = common.QUIET,
) -> None:  # fmt: skip
    """Fit sparse, readable codes to photos or embeddings.

    A code describes an image with a few strong dimensions, which you can look at and name in the
    atlas. Prints a verdict on how readable the dimensions are.
    """
    display = common.open_display(quiet)
    from bayesncl.codes.encoders import Request
    from bayesncl.codes.fit import Options
    from bayesncl.codes.fit import fit as fit_codes

    channels = parse_triple("--mean", mean), parse_triple("--std", std)
    request = Request(encoder or "", weights, size, *channels, mirror)
    options = Options(method, components, active, seed, request, labels, images, fresh)
    with common.stoppable(display, KeyboardInterrupt, "stopped; run the same command to continue"):
        fit_codes(source, out, options, device, display)


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
    ungated: bool = flag("--ungated", "For a run: write the features before gating."),
    names: Path | None = opt("FILE", "A names.json with column names (default: the one in MODEL)."),
    long: bool = flag("--long", "Write one row per image and active dimension."),
    encoder: str | None = common.ENCODER_AGAIN,
    device: str = common.DEVICE, quiet: bool = common.QUIET,
) -> None:  # fmt: skip
    """Encode images and write the result to a file."""
    display = common.open_display(quiet)
    from bayesncl.codes.embed import embed_images
    from bayesncl.codes.open import load
    from bayesncl.inputs import ENDINGS
    from bayesncl.progress import plural

    if is_codes(run):
        common.refuse_for_codes(run, ungated=ungated)
    count, width = embed_images(
        load(run, device, encoder=encoder), images, out, n_active=active, gated=not ungated,
        names=names, long=long, progress=display.count,
    )  # fmt: skip
    display.close()
    noun = "row" if images is None or images.suffix.lower() in ENDINGS else "image"
    lines = ", one line per image and active dimension" if long else ""
    display.note(f"{out}: {plural(count, noun)} x {width:,} dimensions{lines}")


def export(
    run: Path = common.TRAINED,
    out: Path = out_file("FILE.onnx", "File to write.", "-o", "--out", default=Path("model.onnx")),
    head: bool = flag("--head", "For codes: export only the head, which takes embeddings."),
    encoder: str | None = common.ENCODER_AGAIN, quiet: bool = common.QUIET,
) -> None:  # fmt: skip
    """Export a run or codes to ONNX.

    Prints the largest difference between the ONNX and torch outputs.
    """
    display = common.open_display(quiet)
    from bayesncl.codes.export import export as export_model
    from bayesncl.codes.open import load

    model = load(run, encoder=encoder)
    display.busy("exporting")
    outputs, error = export_model(model, out, head=head)
    display.close()
    display.note(f"{out}: outputs {' and '.join(outputs)}; largest difference to torch {error:.1g}")


def atlas(
    runs: list[Path] | None = arg("MODEL", "Run folders, model files or codes from `fit`.", None),
    features: Path | None = opt(
        "FILE.npz", "Instead of MODEL: arrays z [N, D], images [N, H, W, 3], optionally y [N]."
    ),
    data: str | None = common.DATA,
    out: Path | None = out_folder("Folder to write (default: MODEL/atlas).", "-o", "--out"),
    max_images: int = opt("N", "Show at most N images.", default=10_000, min=1),
    heat: bool = flag("--heat", "For codes: add heat maps (encodes all photos again)."),
    encoder: str | None = common.ENCODER_AGAIN,
    audit: bool = flag("--audit", "For codes: run `audit` and show its findings."),
    single_file: Path | None = out_file("OUT.html", "Also write the page as one HTML file."),
    small: bool = flag("--small", "With --single-file: leave out the large pictures."),
    serve: bool = flag("--serve", "Serve the page locally and save names in MODEL."),
    port: int = opt("N", "Port for --serve; 0 picks a free one.", default=8000),
    device: str = common.DEVICE, quiet: bool = common.QUIET,
) -> None:  # fmt: skip
    """Build a web page that shows the images behind each dimension."""
    display = common.open_display(quiet)
    from bayesncl.atlas.build import pack
    from bayesncl.atlas.server import serve as serve_folder
    from bayesncl.atlas.sources import AtlasOptions, make_atlas
    from bayesncl.codes.folder import CodesFolder

    if (features is None) == (not runs):
        raise InputError("atlas takes one or more runs, or --features FILE.npz")
    if small and single_file is None:
        raise InputError("--small applies to --single-file")
    sources = runs or [features or Path()]
    first = sources[0]
    out = out or (first.with_name(f"{first.stem}-atlas") if first.is_file() else first / "atlas")
    options = AtlasOptions(data, max_images, device, heat, encoder, audit)
    page = make_atlas(sources, out, options, display)
    if single_file is not None:
        write_atomic(single_file, pack(page.parent, small))
    display.close()
    display.note(f"open {single_file or page}")
    if serve:
        serve_folder(page.parent, port, [CodesFolder(path) for path in sources if is_codes(path)])


def quiz(
    files: list[Path] = arg("FILE", "quiz.json files exported from the atlas."),
    json: Path | None = common.JSON,
) -> None:
    """Merge the atlas quiz results of several people.

    Prints how often the odd image was found, by run and dimension.
    """
    from bayesncl.atlas.quiz import join_quizzes, render_quiz
    from bayesncl.measure.result import to_json

    joined = join_quizzes(files)
    if json is not None:
        write_atomic(json, to_json(joined))
    print(render_quiz(joined))


def note_page(display: Display, codes: Path, page: str) -> None:
    """How to see the results in the atlas, if these codes have images."""
    from bayesncl.codes.folder import CodesFolder

    if CodesFolder(codes).about().has_images:
        display.note(f"to look at them: bayesncl atlas {codes} --serve, page {page}")


def audit(
    codes: Path = common.CODES,
    out: Path | None = TABLE,
    n: int = opt("N", "Findings to print per kind.", "-n", default=5, min=0),
    near: float = opt("C", "Minimum cosine of near-duplicates.", default=0.95, min=0, max=1),
    device: str = common.DEVICE, quiet: bool = common.QUIET,
) -> None:  # fmt: skip
    """List likely wrong labels, odd images and duplicates."""
    display = common.open_display(quiet)
    from bayesncl.codes.folder import CodesFolder
    from bayesncl.jobs.audit import Finding, audit_folder, summarize

    display.busy("comparing images")
    found = audit_folder(CodesFolder(codes), near=near, device=device)
    write_found(display, out, Finding, found)
    display.show(summarize(found, n))
    note_page(display, codes, "To check")


def find(
    codes: Path = common.CODES,
    photo: Path | None = arg("PHOTO", "Find images similar to this one.", None),
    name: list[str] | None = opt(
        "NAME", "Find images strong in this dimension (a name or z17). Repeatable."
    ),
    without: list[str] | None = opt(
        "NAME", "With --name: penalize images strong in this dimension. Repeatable."
    ),
    n: int = opt("N", "Images to list.", "-n", default=50, min=1),
    out: Path | None = TABLE,
    encoder: str | None = common.ENCODER_AGAIN,
    device: str = common.DEVICE, quiet: bool = common.QUIET,
) -> None:  # fmt: skip
    """Search the fitted images by photo or by dimensions."""
    display = common.open_display(quiet)
    from bayesncl.codes.open import PhotoCodes
    from bayesncl.jobs.find import Match, find_images

    model = PhotoCodes(codes, device, encoder)
    found = find_images(model, photo, name or (), without or (), n=n)
    write_found(display, out, Match, found)
    display.close()
    for match in found:
        print(f"{match.score:6.3f}  {printable(match.label, 24):24}  {printable(match.image, 200)}")


def compare(
    codes: Path = common.CODES,
    images: Path = arg("IMAGES", "A folder of new images, or an array file."),
    out: Path | None = TABLE,
    n: int = opt("N", "Images and dimensions to print.", "-n", default=10, min=0),
    encoder: str | None = common.ENCODER_AGAIN,
    device: str = common.DEVICE, quiet: bool = common.QUIET,
) -> None:  # fmt: skip
    """Show how new images differ from the fitted ones."""
    display = common.open_display(quiet)
    from bayesncl.codes.open import PhotoCodes
    from bayesncl.jobs.compare import Novel, summarize
    from bayesncl.jobs.compare import compare as compare_images

    model = PhotoCodes(codes, device, encoder)
    found = compare_images(model, images, display.count)
    write_found(display, out, Novel, found.images)
    display.show(summarize(found, n))
    note_page(display, codes, "New here")


def explain(
    codes: Path = common.CODES,
    labels: Path | None = opt(
        "FILE", "A table with columns name and label, or .npy (default: the labels in CODES)."
    ),
    groups: Path | None = opt(
        "FILE", "A second label per image, such as its background; adds worst-group accuracy."
    ),
    without: list[str] | None = opt("NAME", "A dimension to switch off. Repeatable."),
    image: str | None = opt("NAME", "Explain the classifier's decision on this image."),
    n: int = opt("N", "Dimensions to print for and against each class.", "-n", default=5, min=0),
    out: Path | None = TABLE, quiet: bool = common.QUIET,
) -> None:  # fmt: skip
    """Show which dimensions a linear classifier relies on.

    Dimensions marked "irrelevant" in the atlas are switched off.
    """
    display = common.open_display(quiet)
    from bayesncl.codes.open import PhotoCodes
    from bayesncl.jobs import explain as job

    model = PhotoCodes(codes)
    row = None if image is None else job.find_image(model.rows, image)
    display.busy("fitting classifiers")
    found, z = job.explain_codes(model, labels, groups, without or ())
    write_found(display, out, job.Weight, found.weights)
    display.show(
        job.summarize(found, n) if row is None else job.explain_image(found, z[row], 2 * n)
    )
    note_page(display, codes, "Classifier")


def names(
    codes: Path = common.CODES,
    files: list[Path] | None = arg("FILE", "names.json files to merge in.", None),
    from_labels: bool = flag("--from-labels", "Suggest a class for each readable dimension."),
    old: Path | None = opt("CODES", "Move names from other codes of the same images.", "--from"),
    from_classifier: bool = flag("--from-classifier", "Suggest the timm model's output classes."),
    words: Path | None = opt("FILE", "Suggest words from this list, one per line."),
    vectors: Path | None = opt("FILE.npy", "Embeddings of the words, one row per word."),
    quiet: bool = common.QUIET,
) -> None:
    """Show, merge, move or suggest names of dimensions."""
    display = common.open_display(quiet)
    from bayesncl.codes.encoders import read_classifier
    from bayesncl.codes.folder import CodesFolder
    from bayesncl.codes.open import PhotoCodes
    from bayesncl.jobs import naming

    model = PhotoCodes(codes)
    folder = model.folder
    if (words is None) != (vectors is None):
        raise InputError("--words and --vectors belong together")
    for file in files or ():
        naming.add_file(folder, file)
    if old is not None:
        for line in naming.add_from_codes(folder, CodesFolder(old)):
            display.note(line)
    if from_labels:
        naming.suggest_from_labels(model)
    sources = {}
    if words is not None and vectors is not None:
        sources["words"] = naming.read_words(words, vectors)
    if from_classifier:
        sources["classifier"] = read_classifier(folder.encoder_request(), display.note)
    for source, given in sources.items():
        display.note(naming.suggest_from_words(model, source, *given))
    display.show("\n".join(printable(line, 200) for line in naming.describe(folder.names())))
