"""Arguments and options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from .files import check_place

RecipeName = Annotated[
    str, Argument(metavar="RECIPE", help="DATASET-METHOD, a plain DATASET, or a recipe.json; see: bayesncl recipes")
]
RunDir = Annotated[Path, Argument(metavar="RUN", help="a run folder")]
Trained = Annotated[Path, Argument(metavar="RUN", help="a run folder, a model file, or codes that fit wrote")]
DataDir = Annotated[str | None, Option("--data", metavar="DIR", help="where the images are")]
Changes = Annotated[
    list[str] | None, Option("--set", metavar="PART.FIELD=VALUE", help="change a field of the recipe; may be repeated")
]
Epochs = Annotated[int | None, Option("--epochs", help="short for --set run.epochs=")]
Batch = Annotated[int | None, Option("--batch", help="short for --set run.batch=")]
Size = Annotated[int | None, Option("--size", help="side of a view in pixels; stored images follow it")]
Backbone = Annotated[str | None, Option("--backbone", help="resnet18, resnet50, small, medium, or timm:NAME")]
Device = Annotated[str | None, Option("--device", help="cpu or cuda; default the GPU if there is one")]
Quiet = Annotated[bool, Option("--quiet", help="no progress or remarks; warnings still show")]


def written(*names: str, help: str | None = None, metavar: str = "FILE") -> Any:
    """An option for a file to write; a path that cannot be written is refused before the work, not after it."""
    return Option(*names, metavar=metavar, callback=check_place, help=help)


Json = Annotated[Path | None, written("--json", help="write the results as JSON")]
Csv = Annotated[Path | None, written("--csv", help="write the results as CSV")]
Markdown = Annotated[Path | None, written("--markdown", help="write the results as a Markdown table")]
Latex = Annotated[Path | None, written("--latex", help="write the results as a LaTeX table")]
Everything = Annotated[bool, Option("--all", help="after the verdict print every measure there is")]
