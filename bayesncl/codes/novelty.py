"""How novel images are, by their codes and by their embeddings."""

import numpy as np
import torch

from bayesncl.codes.estimator import ReadableCodes
from bayesncl.data.images import spread_evenly
from bayesncl.measure import dimensions
from bayesncl.measure.preprocess import load_rows

MAX_ROWS = 20_000  # fitted rows that the covariance is computed from, spread evenly
CPU = torch.device("cpu")
SHRINKAGE = 0.1  # of the mean eigenvalue, added to the covariance


class Novelty:
    """Novelty of embeddings for codes that were fitted on rows `x` [N, F].

    The last `held` rows were held out of the fit. They are the reference; without any, the fitted
    rows are. Two scores, in standard deviations of the reference, are joined by a smooth maximum:
    the entropy of the dense code, and the Mahalanobis distance of the embedding.

    Attributes
    ----------
    index : numbers of the reference rows.
    reference : novelty of each of them.
    """

    def __init__(self, codes: ReadableCodes, x: np.ndarray, held: int = 0) -> None:
        self.codes = codes
        first = len(x) - held
        self.fitted = spread_evenly(first, MAX_ROWS)
        rows = load_rows(x, self.fitted, codes.moments_, CPU)
        self.mean = rows.mean(0)
        rows -= self.mean
        covariance = (rows.T @ rows).double() / len(rows)
        covariance.diagonal().add_(SHRINKAGE * covariance.trace() / len(covariance))
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(covariance))
        self.whitening = torch.linalg.cholesky(inverse).float()  # [F, F], L L' is the inverse
        self.index = first + spread_evenly(held, MAX_ROWS) if held else self.fitted
        parts = self._parts(x[self.index], self.index)
        self.center, self.spread = parts.mean(1), parts.std(1).clip(1e-12)
        self.reference = self._join(parts)

    def __call__(self, x: np.ndarray, index: np.ndarray | None = None) -> np.ndarray:
        """Novelty [M] of embeddings; `index` [M] are their numbers if they are fitted rows."""
        return self._join(self._parts(x, index))

    def _join(self, parts: np.ndarray) -> np.ndarray:
        return np.logaddexp(*((parts.T - self.center) / self.spread).T) - np.log(2)

    def _parts(self, x: np.ndarray, index: np.ndarray | None) -> np.ndarray:
        """Entropy and distance of each embedding, [2, M]."""
        rows = load_rows(x, np.arange(len(x)), self.codes.moments_, CPU) - self.mean
        away = (rows @ self.whitening).square().sum(1).double().numpy()
        if index is not None:  # the distance by a covariance without the row itself
            away = np.where(np.isin(index, self.fitted), away / (1 - away / len(self.fitted)), away)
        return np.stack([entropy(self.codes.dense(x)), np.sqrt(away)])


def entropy(z: np.ndarray) -> np.ndarray:
    """Entropy of each dense code [N, D], scaled to sum 1, as a share of log D: 0 to 1.

    Codes of familiar images have few strong dimensions. The strongest entry of a kept code does
    not tell: keeping few dimensions and scaling to unit length makes it large for any image.
    """
    nats = dimensions.entropy(z.T.astype(np.float64))  # NaN of a zero row
    return np.abs(np.nan_to_num(nats)) / np.log(max(z.shape[1], 2))
