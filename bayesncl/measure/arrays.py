"""Arrays as the measures take them; the reader is `bayesncl.arrays`."""

from ..arrays import Array, as_features, as_labels, read_features

__all__ = ["Array", "as_features", "as_labels", "read"]

read = read_features
