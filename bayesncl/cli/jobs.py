"""Commands for jobs with fitted codes: audit, find, compare, explain, names."""

from pathlib import Path

from bayesncl.cli import common
from bayesncl.cli.common import arg, flag, opt
from bayesncl.errors import InputError, printable


def check_table_path(path: Path | None) -> Path | None:
    """Check that a .csv or .parquet can be written, before the work starts."""
    if path is not None:
        from bayesncl.codes.table import check_table

        check_table(path)
    return path


CODES = arg("CODES", "A folder from `bayesncl fit`.")
OUT = opt("FILE", "Write a table (.csv or .parquet).", "-o", "--out", callback=check_table_path)


def audit(
    codes: Path = CODES,
    out: Path | None = OUT,
    n: int = opt("N", "Findings to print per kind.", "-n", default=5, min=0),
    near: float = opt("C", "Minimum cosine of near-duplicates.", default=0.95, min=0, max=1),
    device: str = common.DEVICE,
    quiet: bool = common.QUIET,
) -> None:
    """List likely wrong labels, odd images and duplicates."""
    display = common.open_display(quiet)
    from bayesncl.codes.folder import CodesFolder
    from bayesncl.codes.table import write_tuples
    from bayesncl.jobs.audit import Finding, audit_folder, summarize

    display.busy("comparing images")
    folder = CodesFolder(codes)
    found = audit_folder(folder, near=near, device=device)
    write_tuples(out, Finding, found)
    display.show(summarize(found, n))
    folder.save_result("audit", {"findings": found})
    display.note(f"to look at them: bayesncl atlas {codes} --serve, page To check")


def find(
    codes: Path = CODES,
    photo: Path | None = arg("PHOTO", "Find images similar to this one.", None),
    name: list[str] | None = opt("NAME", "Strong in this dimension: a name or z17. Repeatable."),
    without: list[str] | None = opt("NAME", "Weak in this dimension. Repeatable."),
    n: int = opt("N", "Images to print.", "-n", default=50, min=1),
    out: Path | None = OUT,
    encoder: str | None = common.ENCODER_AGAIN,
    device: str = common.DEVICE,
    quiet: bool = common.QUIET,
) -> None:
    """Find fitted images by a similar photo or by named dimensions."""
    display = common.open_display(quiet)
    from bayesncl.codes.folder import CodesFolder
    from bayesncl.codes.table import write_tuples
    from bayesncl.device import find_device
    from bayesncl.jobs.find import Match, find_images

    where = str(find_device(device))
    found = find_images(
        CodesFolder(codes), photo, name or (), without or (), n=n, device=where, encoder=encoder
    )
    write_tuples(out, Match, found)
    display.close()
    for match in found:
        print(f"{match.score:6.3f}  {printable(match.label, 24):24}  {printable(match.image, 200)}")


def compare(
    codes: Path = CODES,
    images: Path = arg("IMAGES", "A folder of new images, or an array file."),
    out: Path | None = OUT,
    n: int = opt("N", "Images and dimensions to print.", "-n", default=10, min=0),
    encoder: str | None = common.ENCODER_AGAIN,
    device: str = common.DEVICE,
    quiet: bool = common.QUIET,
) -> None:
    """Show what is new in other images."""
    display = common.open_display(quiet)
    from bayesncl.codes.folder import CodesFolder
    from bayesncl.codes.open import PhotoCodes
    from bayesncl.codes.table import write_tuples
    from bayesncl.device import find_device
    from bayesncl.jobs.compare import Novel, save, summarize
    from bayesncl.jobs.compare import compare as compare_images

    model = PhotoCodes(CodesFolder(codes), find_device(device), encoder)
    found = compare_images(model, images, display.count)
    write_tuples(out, Novel, found.images)
    display.show(summarize(found, n))
    save(model.folder, images, found)
    display.note(f"to look at them: bayesncl atlas {codes} --serve, page New here")


def explain(
    codes: Path = CODES,
    labels: Path | None = opt("FILE", "Labels (default: those of CODES)."),
    groups: Path | None = opt("FILE", "A second label per image, such as its background."),
    without: list[str] | None = opt("NAME", "A dimension to switch off. Repeatable."),
    image: str | None = opt("NAME", "Explain the classifier's decision on this image."),
    n: int = opt("N", "Dimensions to print, for and against.", "-n", default=5, min=0),
    out: Path | None = OUT,
    quiet: bool = common.QUIET,
) -> None:
    """Show which dimensions a linear classifier relies on.

    Dimensions marked "irrelevant" in the atlas are switched off.
    """
    display = common.open_display(quiet)
    from bayesncl.codes.folder import CodesFolder
    from bayesncl.codes.table import write_tuples
    from bayesncl.jobs import explain as job

    display.busy("fitting classifiers")
    folder = CodesFolder(codes)
    found, z, rows = job.explain_folder(folder, labels, groups, without or ())
    row = None if image is None else job.find_image(rows, image)
    write_tuples(out, job.Weight, found.weights)
    job.save(folder, found)
    display.show(
        job.summarize(found, n) if row is None else job.explain_image(found, z[row], 2 * n)
    )
    display.note(f"images of these dimensions: bayesncl atlas {codes} --serve, then #/explain")


def names(
    codes: Path = CODES,
    files: list[Path] | None = arg("FILE", "names.json files to merge in.", None),
    from_labels: bool = flag("--from-labels", "Suggest names of the labels' classes."),
    old: Path | None = opt("CODES", "Copy names from other codes.", "--from"),
    from_classifier: bool = flag("--from-classifier", "Suggest classes known to the timm encoder."),
    words: Path | None = opt("FILE", "Suggest from these words, one per line."),
    vectors: Path | None = opt("FILE.npy", "Embeddings of the words."),
    quiet: bool = common.QUIET,
) -> None:
    """Show, merge or suggest names of dimensions."""
    display = common.open_display(quiet)
    from bayesncl.codes.folder import CodesFolder
    from bayesncl.jobs import naming

    folder = CodesFolder(codes)
    if (words is None) != (vectors is None):
        raise InputError("--words and --vectors belong together")
    for file in files or ():
        naming.add_file(folder, file)
    if old is not None:
        for line in naming.add_from_codes(folder, CodesFolder(old)):
            display.note(line)
    if from_labels:
        naming.add_suggestions(folder, naming.suggest_from_labels(folder), "labels")
    sources = {}
    if words is not None and vectors is not None:
        sources["words"] = naming.read_words(words, vectors)
    if from_classifier:
        sources["classifier"] = naming.classifier_words(folder, display.note)
    for source, given in sources.items():
        found, least = naming.suggest_from_words(folder, *given)
        naming.add_suggestions(folder, found, source)
        display.note(f"{len(found)} dimensions have a word with a cosine of {least:.2f} or more")
    display.show("\n".join(printable(line, 200) for line in naming.describe(folder.names())))
