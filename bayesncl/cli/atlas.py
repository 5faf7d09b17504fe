"""Commands around the atlas: atlas, quiz."""

from pathlib import Path

from bayesncl.cli import common
from bayesncl.cli.common import arg, flag, opt, out_file, out_folder
from bayesncl.errors import InputError
from bayesncl.io import is_codes, write_atomic


def atlas(
    runs: list[Path] | None = arg("RUN", "Run folders, model files or codes from `fit`.", None),
    features: Path | None = opt("FILE.npz", "Instead of runs: arrays z, images, optionally y."),
    data: str | None = common.DATA,
    out: Path | None = out_folder("Folder to write (default: RUN/atlas).", "-o", "--out"),
    max_images: int = opt("N", "Show at most N images.", default=10_000, min=1),
    heat: bool = flag("--heat", "For codes: add heat maps (encodes all photos again)."),
    encoder: str | None = common.ENCODER_AGAIN,
    audit: bool = flag("--audit", "For codes: run `audit` and show its findings."),
    single_file: Path | None = out_file("OUT.html", "Also write the page as one HTML file."),
    small: bool = flag("--small", "With --single-file: leave out the large pictures."),
    serve: bool = flag("--serve", "Serve the page locally and save names in RUN."),
    port: int = opt("N", "Port for --serve; 0 picks a free one.", default=8000),
    device: str = common.DEVICE,
    quiet: bool = common.QUIET,
) -> None:
    """Build a web page that shows what each dimension means."""
    display = common.open_display(quiet)
    from bayesncl.atlas.build import pack
    from bayesncl.atlas.server import serve as serve_folder
    from bayesncl.atlas.sources import AtlasOptions, make_atlas
    from bayesncl.codes.folder import CodesFolder
    from bayesncl.device import find_device

    if (features is None) == (not runs):
        raise InputError("atlas takes one or more runs, or --features FILE.npz")
    if small and single_file is None:
        raise InputError("--small applies to --single-file")
    sources = runs or [features or Path()]
    first = sources[0]
    out = out or (first.with_name(f"{first.stem}-atlas") if first.is_file() else first / "atlas")
    options = AtlasOptions(data, max_images, find_device(device), heat, encoder, audit)
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
    """Merge the intruder-quiz results of several people.

    Prints the accuracy per method and dimension.
    """
    from bayesncl.atlas.quiz import join_quizzes, render_quiz
    from bayesncl.measure.result import to_json

    joined = join_quizzes(files)
    if json is not None:
        write_atomic(json, to_json(joined))
    print(render_quiz(joined))
