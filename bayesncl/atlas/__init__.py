"""The atlas: a folder of plain files that shows, in any browser, what each dimension means."""

from bayesncl.atlas.build import build_atlas
from bayesncl.atlas.page_data import AtlasRun
from bayesncl.atlas.pictures import Photos
from bayesncl.atlas.server import serve

__all__ = ["AtlasRun", "Photos", "build_atlas", "serve"]
