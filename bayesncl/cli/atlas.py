"""Commands around the atlas: atlas, quiz."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from bayesncl.cli import common
from bayesncl.cli.common import arg, flag, opt, out_file, out_folder
from bayesncl.errors import InputError
from bayesncl.io import is_codes, write_atomic


def atlas(
    runs: Annotated[list[Path] | None, arg("RUN", "Runs, model files or codes.")] = None,
    features: Annotated[Path | None, opt("FILE.npz", "Arrays z, images and optionally y.")] = None,
    data: common.DataDir = None,
    out: Annotated[Path | None, out_folder("Default: RUN/atlas.", "-o", "--out")] = None,
    images: Annotated[int, opt("N", "Show at most N images.", min=1)] = 10_000,
    heat: Annotated[bool, flag("--heat", "Show where in a photo it is active (codes).")] = False,
    encoder: Annotated[str | None, opt("E", "Encoder for --heat, as for `fit`.")] = None,
    audit: Annotated[bool, flag("--audit", "Look for things to check (codes).")] = False,
    single_file: Annotated[Path | None, out_file("OUT.html", "Write one HTML file.")] = None,
    small: Annotated[bool, flag("--small", "Single file without large pictures.")] = False,
    serve: Annotated[bool, flag("--serve", "Serve the page on localhost.")] = False,
    port: Annotated[int, opt("N", "Port; 0 takes a free one.")] = 8000,
    device: common.Device = "auto",
    quiet: common.Quiet = False,
) -> None:
    """Build the page that shows what each dimension means. Opens in any browser."""
    display = common.open_display(quiet)
    from bayesncl.atlas import serve as serve_folder
    from bayesncl.atlas.single import pack
    from bayesncl.atlas.sources import atlas_of_arrays, atlas_of_codes, atlas_of_runs, default_out
    from bayesncl.codes.folder import CodesFolder
    from bayesncl.device import find_device

    if (features is None) == (not runs):
        raise InputError("atlas takes one or more runs, or --features FILE.npz")
    if small and single_file is None:
        raise InputError("--small applies to --single-file")
    runs = runs or []
    out = out or default_out(features or runs[0])
    if features is not None:
        page = atlas_of_arrays(features, out, display)
    elif any(map(is_codes, runs)):
        if other := [run for run in runs if not is_codes(run)]:
            raise InputError(f"an atlas shows runs or codes, not both: {other[0]} is not codes")
        page = atlas_of_codes(runs, out, data, images, display, heat, encoder, audit)
    else:
        page = atlas_of_runs(runs, out, data, images, find_device(device), display)
    if single_file is not None:
        write_atomic(single_file, pack(page.parent, small))
    display.close()
    display.note(f"open {single_file or page}")
    if serve:
        serve_folder(page.parent, port, [CodesFolder(run) for run in runs if is_codes(run)])


def quiz(
    files: Annotated[list[Path], arg("FILE", "Results of the atlas's quiz.")],
    json: common.Json = None,
) -> None:
    """Merge the intruder-quiz results of several people.

    Prints the accuracy per method and dimension.
    """
    from bayesncl.atlas.quiz import join_quizzes, quiz_json, render_quiz

    joined = join_quizzes(files)
    if json is not None:
        write_atomic(json, quiz_json(joined))
    print(render_quiz(joined))
