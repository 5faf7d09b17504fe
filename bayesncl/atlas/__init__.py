"""The atlas: a folder of plain files that shows, in any browser and offline, what every dimension means."""

from .build import build_atlas, serve
from .contents import AtlasRun
from .galleries import galleries
from .pictures import Photos

__all__ = ["AtlasRun", "Photos", "build_atlas", "galleries", "serve"]
