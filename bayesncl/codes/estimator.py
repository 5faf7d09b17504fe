"""ReadableCodes: a scikit-learn transformer from embeddings of any model to readable codes."""

from __future__ import annotations

import copy
import functools
import inspect
import json
import math
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
import scipy.sparse
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.metrics import r2_score
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from bayesncl.codes.factors import MAX_ROWS, find_axes
from bayesncl.data.images import Progress, spread_evenly
from bayesncl.device import find_device
from bayesncl.errors import InputError, as_input_error, import_extra
from bayesncl.inputs import as_numpy
from bayesncl.io import digest, read_tensors, tensor_bytes, write_atomic, write_saved
from bayesncl.measure import preprocess
from bayesncl.measure.columns import MAX_TWIN_ROWS, distinct
from bayesncl.measure.neighbors import nearest, shared_neighbors
from bayesncl.measure.preprocess import Moments
from bayesncl.measure.rows import slices
from bayesncl.measure.topk import KEPT
from bayesncl.method.gates import top_k_mask
from bayesncl.method.heads import HEADS, Factors, Features, Head
from bayesncl.method.lars import Light, warmup_cosine
from bayesncl.method.losses import check_n_active, keep_strongest, unit_rows
from bayesncl.method.rng import epoch_order, make_key, uniform
from bayesncl.progress import Display

FORMAT = "bayesncl-codes-2"
WEIGHTS, CONFIG = "model.safetensors", "config.json"  # on the Hugging Face hub
FITTED = ("n_components_", "n_features_in_", "n_iter_", "loss_", "recall_", "interrupted_")
LEARNING_RATE, WEIGHT_DECAY, WARMUP_STEPS, EPOCHS = 2e-3, 1e-4, 50, 12
INIT_ROWS = 8192  # rows from which a head is initialized
ROWS_PER_BLOCK = {"cpu": 256, "cuda": 8192}  # rows transformed at a time
MAX_COMPONENTS = 1 << 20
MAX_VARIANCE_ROWS = 50_000
WARM_RATE = 0.05  # of the learning rate, where a fit continues
THIN_AT = 0.3, 0.6, 1.0  # shares of the training after which twins are dropped
LEAST_SHARED = 0.25  # of the neighbors that codes find, which they still must find without twins
MAX_JUDGED_ROWS = 2000  # on which this is judged
NEIGHBOR_SECONDS = 60.0  # a search that took longer is saved
# integer options: smallest value, and the one other value they may have
INTEGERS = {
    "n_components": (1, "auto"), "n_active": (1, None), "n_neighbors": (1, "auto"),
    "max_iter": (0, "auto"), "batch_size": (1, "auto"), "max_samples": (2, None),
}  # fmt: skip
DEPRECATED = {"dim": "n_components", "keep": "n_active"}


class _AdamW(Light, torch.optim.AdamW):
    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


def _accept_deprecated(init: Any) -> Any:
    """`__init__` that also takes the old names of options, until the release after 0.2."""

    @functools.wraps(init)
    def wrapper(self: ReadableCodes, *args: Any, **options: Any) -> None:
        for old, new in DEPRECATED.items():
            if old in options:
                warnings.warn(f"{old} is deprecated: use {new}", FutureWarning, stacklevel=2)
                options[new] = options.pop(old)
        init(self, *args, **options)

    return wrapper


class ReadableCodes(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Sparse, nameable features from the embeddings of any model.

    A small head is trained on frozen embeddings X [N, F], without labels: rows that are neighbors
    in X learn to share a code. Rows are scaled to unit length, centered and scaled internally. The
    code of a row depends on that row alone.

    Parameters
    ----------
    n_components : number of dimensions D. ``"auto"`` starts with about 4 sqrt(N), at most N / 4,
        rounded to a power of two, at most 4,096 (1024 for 50,000 rows, 128 for 1,000);
        ``prototypes`` and ``factors`` then drop those that duplicate another (cosine above 0.9).
    method : ``prototypes`` (similarity to D prototypes that share the rows equally), ``factors``
        (the same in groups, where images are composed of two things), ``ncl`` (non-negative
        contrastive), ``bayesncl`` (the same with gates), ``sae`` (TopK sparse
        autoencoder) or ``csr`` (sparse autoencoder with a contrastive term).
    n_active : keep only the `n_active` strongest dimensions per row; None keeps all.
    n_neighbors : partners of a row are drawn from this many nearest rows; ``"auto"`` takes half the
        rows per dimension, N / (2 D), within 10 to 50 (fewer for less than 100 rows).
    max_iter : training steps; ``"auto"`` is about twelve epochs, at least 600 (fewer for small
        sets) and at most 5,000.
    batch_size : pairs per step.
    random_state : int, RandomState or None; an int gives the same codes on one machine.
    positives : what a row should agree with, its ``neighbors`` or ``self``; pairs passed to `fit`
        replace both.
    max_samples : `fit` uses at most this many rows, drawn at random; None uses all.
    warm_start : `fit` continues from the fitted codes, at a twentieth of the learning rate, so that
        dimensions keep their meaning when rows are added. Needs the same columns, `method` and
        number of dimensions.
    sparse_output : return a scipy CSR matrix; ``prototypes`` has no zeros, so it needs `n_active`.
    unit_norm : scale codes to unit length; ``sae`` and ``csr`` can also return them with their
        scale (False), which `inverse_transform` needs.
    device : ``auto`` (the GPU if there is one), ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
    verbose : 1 shows the progress of `fit` on standard error.

    Attributes
    ----------
    n_components_ : number of dimensions D.
    groups_ : int [D], the group of each dimension: 0, or 0 and 1 where ``factors`` found a factor.
    components_ : [D, F], dictionary of ``sae`` and ``csr``: what one unit of each dimension adds to
        an embedding of unit length.
    n_features_in_ : number of columns F of X.
    n_iter_ : steps taken.
    loss_ : mean loss of the last 50 steps.
    recall_ : share of the true neighbors that the search found; below 1 only with faiss.
    interrupted_ : whether Ctrl-C ended `fit` early.
    names_ : column names of codes that `bayesncl.load` read from a folder with names, or None.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X = load_digits().data
    >>> z = ReadableCodes(n_components=32, n_active=5).fit(X).transform(X)
    >>> z.shape, int((z > 0).sum(1).max())
    ((1797, 32), 5)
    """

    n_components_: int
    method_: str
    moments_: Moments
    head_: Head

    @_accept_deprecated
    def __init__(
        self,
        n_components: int | str = "auto",
        *,
        method: str = "prototypes",
        n_active: int | None = None,
        n_neighbors: int | str = "auto",
        max_iter: int | str = "auto",
        batch_size: int | str = "auto",
        random_state: Any = None,
        positives: str = "neighbors",
        max_samples: int | None = 1_000_000,
        warm_start: bool = False,
        sparse_output: bool = False,
        unit_norm: bool = True,
        device: str = "auto",
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.method = method
        self.n_active = n_active
        self.n_neighbors = n_neighbors
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.random_state = random_state
        self.positives = positives
        self.max_samples = max_samples
        self.warm_start = warm_start
        self.sparse_output = sparse_output
        self.unit_norm = unit_norm
        self.device = device
        self.verbose = verbose

    def fit(
        self, X: Any, y: Any = None, *, pairs: Any = None, neighbors_file: Path | str | None = None,
        progress: Progress | None = None,
    ) -> ReadableCodes:  # fmt: skip
        """Learn the codes of X.

        Parameters
        ----------
        X : [N, F] NumPy array, torch tensor or memory map, of which `max_samples` rows are loaded.
        y : ignored.
        pairs : int [N] or [N, K], the rows that row i should agree with, instead of neighbors.
        neighbors_file : a neighbor search of more than a minute is saved here, and reused for the
            same rows.
        progress : called with (done, total, name of the stage).

        Returns
        -------
        self. Ctrl-C ends training early and keeps what was learned (`interrupted_`).
        """
        display = Display(quiet=not self.verbose)
        device = find_device(self.device)
        # callers often have gradients or full precision switched off, as one does to embed
        full = torch.autocast(device.type, enabled=False)
        with closing(display), torch.inference_mode(False), full, torch.enable_grad():
            return self._fit(X, device, pairs, neighbors_file, progress or display.count)

    def _fit(
        self, X: Any, device: torch.device, pairs: Any, neighbors_file: Path | str | None,
        progress: Progress,
    ) -> ReadableCodes:  # fmt: skip
        self.check_options()
        warm = self._continues
        if warm and not self.can_continue(self.method, self.n_components):
            fitted = f"{self.n_components_} dimensions by {self.method_}"
            raise InputError(f"warm_start continues {fitted}: keep method and n_components")
        source = self._as_rows(X, reset=not warm)
        if len(source) < 2:
            raise InputError(f"n_samples={len(source)}: at least 2 rows are needed")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        given = None if pairs is None else _as_pairs(pairs, len(source))
        chosen = self._draw_rows(len(source), seed)
        n = len(chosen)
        if given is not None and n < len(source):
            raise InputError(f"pairs for {len(source)} rows exceed max_samples={n}")
        dim = self.n_components_ if warm else int(_auto(self.n_components, choose_components(n)))
        check_n_active(self.n_active, dim)
        moments = self.moments_ if warm else preprocess.measure_moments(source, chosen)
        if not moments.scale.any():
            raise InputError(f"all {n} rows of X are the same")
        rows = preprocess.load_rows(source, chosen, moments, device)
        head = self._make_head(rows, dim, seed)
        self._check_output(head)
        parts = head.parts(rows)  # one, or a few groups
        for number, (part, seen) in enumerate(parts):
            if given is None and number < len(parts) - 1:  # few prototypes need few rows
                seen = seen[spread_evenly(n, MAX_ROWS)]
            if not warm:
                first = torch.linspace(0, len(seen) - 1, min(len(seen), INIT_ROWS), device=device)
                part.start(seen[first.long()])
            partners, self.recall_ = given, 1.0
            if partners is None:
                saved = neighbors_file if len(parts) == 1 else None
                partners, self.recall_ = self._find_partners(seen, dim, moments, saved, progress)
            self._train(part, seen, partners.to(device), dim, seed, number > 0, progress)
            if self.interrupted_:
                break
        head.finish()
        self.n_components_ = head.dim
        self.moments_, self.head_ = moments, head.eval().cpu()
        self.method_, self.names_ = self.method, None
        return self

    def _make_head(self, rows: Tensor, dim: int, seed: int) -> Head:
        """A copy of the fitted head where `fit` continues, else a new one."""
        warm = self._continues
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # of the CPU alone
            head = copy.deepcopy(self.head_) if warm else HEADS[self.method](rows.shape[1], dim)
            if isinstance(head, Factors):
                head.divide(find_axes(rows[spread_evenly(len(rows), MAX_ROWS)]), keep_groups=warm)
        return head.to(rows.device, torch.float32).train()

    def _train(
        self, head: Head, rows: Tensor, partners: Tensor, dim: int, seed: int, later_group: bool,
        progress: Progress,
    ) -> None:  # fmt: skip
        """Each step: a batch and its partners, forward, loss, backward, update."""
        n, device = len(rows), rows.device
        batch = min(int(_auto(self.batch_size, choose_batch(n, dim))), n)
        steps = int(_auto(self.max_iter, choose_steps(n, batch)))
        rate = group_rate(steps) if later_group else LEARNING_RATE
        rate *= WARM_RATE if self._continues else 1
        warmup = min(WARMUP_STEPS, steps // 4)
        thins = self.n_components == "auto" and head.thins and not self._continues
        thin_after = {math.ceil(share * steps) for share in THIN_AT if thins}
        optimizer = _AdamW(head.parameters(), lr=rate, weight_decay=WEIGHT_DECAY, fused=True)
        (group,) = optimizer.param_groups
        losses = torch.zeros(max(1, min(50, steps)), device=device, dtype=torch.float32)
        self.interrupted_, done = False, 0
        try:
            for step, index in enumerate(_batches(n, batch, seed, steps, device)):
                draw = uniform(make_key(seed, step, index), 1).squeeze(1)
                other = partners[index, (draw * partners.shape[1]).long()]
                start = rate / (warmup + 1)
                group["lr"] = warmup_cosine(step + 1, rate, warmup, steps + 1, start=start)
                optimizer.zero_grad()
                terms = head.loss(head(rows[torch.cat([index, other])]))
                terms.loss.backward()
                optimizer.step()
                losses[step % len(losses)] = terms.loss.detach()
                done = step + 1
                if done in thin_after:
                    self._drop_twins(head, rows)
                progress(done, steps, "training")
        except KeyboardInterrupt:
            if done == 0:
                raise
            self.interrupted_ = True
        self.n_iter_ = done
        self.loss_ = float(losses[:done].mean())  # NaN without a step

    @property
    def _continues(self) -> bool:
        """Whether `fit` starts from fitted codes; it then keeps all their dimensions."""
        return self.warm_start and hasattr(self, "head_")

    def can_continue(self, method: str, n_components: int | str) -> bool:
        """Whether `warm_start` can continue these fitted codes by a method and width."""
        return method == self.method_ and n_components in ("auto", self.n_components_)

    @torch.no_grad()
    def _drop_twins(self, head: Head, rows: Tensor) -> None:
        """Drop dimensions that duplicate another, unless codes then miss most neighbors of rows."""
        some = rows[spread_evenly(len(rows), MAX_TWIN_ROWS)]
        z = head.eval()(some).gated
        head.train()
        left = torch.from_numpy(distinct(z))
        if len(left) < max(2, self.n_active or 2):
            return
        judged = spread_evenly(len(some), MAX_JUDGED_ROWS)
        before, after = (
            shared_neighbors(some[judged], keep_strongest(unit_rows(each), min(KEPT, len(left))))
            for each in (z[judged], z[judged][:, left])
        )
        if after >= LEAST_SHARED * before:
            head.thin(left)

    def transform(self, X: Any) -> Any:
        """Codes of X.

        Parameters
        ----------
        X : [M, F], as for `fit`.

        Returns
        -------
        [M, D] float32, non-negative, rows of unit length (unless `unit_norm` is False).
        """
        check_is_fitted(self, "head_")
        self.check_options()
        check_n_active(self.n_active, self.n_components_)
        self._check_output(self.head_)
        source = self._as_rows(X, reset=False)
        if self.sparse_output:
            parts = [scipy.sparse.csr_matrix(z) for _, z in self._encode(source)]
            return scipy.sparse.vstack(parts, format="csr")
        out = np.empty((len(source), self.n_components_), np.float32)
        for part, z in self._encode(source):
            out[part] = z
        return out

    @torch.inference_mode()
    def _encode(self, source: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Codes, block by block. All blocks have one shape, so sums do not depend on the batch."""
        device = find_device(self.device)
        head = self.head_ if device.type == "cpu" else copy.deepcopy(self.head_).to(device)
        size = ROWS_PER_BLOCK.get(device.type, ROWS_PER_BLOCK["cpu"])
        block = torch.zeros(size, self.moments_.width, dtype=torch.float32, device=device)
        for part in slices(len(source), size):
            rows = preprocess.read_rows(source, np.arange(part.start, part.stop)).to(device)
            block[: len(rows)] = preprocess.prepare(rows, self.moments_)
            yield part, self.select_active(head(block))[: len(rows)].cpu().numpy()

    def select_active(self, features: Features) -> Tensor:
        """Codes [n, D] from the features of the head: the strongest entries of each row."""
        if not self.unit_norm:
            assert features.aux is not None and features.mask is not None
            z = features.aux.relu() * features.mask
            return z if self.n_active is None else z * top_k_mask(z, self.n_active)
        z = keep_strongest(features.gated, self.n_active)
        if self.head_.zeros:  # a row without an active dimension gets the one that came closest
            closest = features.aux if features.aux is not None else features.z
            one = torch.nn.functional.one_hot(closest.argmax(1), self.n_components_).to(z.dtype)
            z = torch.where((z > 0).any(1, keepdim=True), z, one)
        return z

    def inverse_transform(self, Z: Any) -> np.ndarray:
        """Embeddings reconstructed from codes by ``sae`` or ``csr``.

        Parameters
        ----------
        Z : [M, D], dense or CSR: codes with their scale, by `transform` with ``unit_norm=False``.

        Returns
        -------
        [M, F] float32, close to the embeddings at unit length.
        """
        check_is_fitted(self, "head_")
        if self.unit_norm:
            raise InputError("inverse_transform needs codes with their scale: set unit_norm=False")
        self._check_output(self.head_)
        z = np.asarray(Z.toarray() if scipy.sparse.issparse(Z) else Z, np.float32)
        if z.ndim != 2 or z.shape[1] != self.n_components_:
            raise InputError(f"Z must be [M, {self.n_components_}], got {list(z.shape)}")
        with torch.inference_mode():
            h = self.head_.bias + self.head_.decode(torch.from_numpy(z))  # type: ignore[operator]
            return preprocess.restore(h, self.moments_).numpy()

    @property
    def groups_(self) -> np.ndarray:
        """The group of each dimension, int [D]."""
        check_is_fitted(self, "head_")
        groups = self.head_.groups if isinstance(self.head_, Factors) else [self.head_]
        return np.repeat(np.arange(len(groups)), [group.dim for group in groups])

    @property
    def components_(self) -> np.ndarray:
        """Dictionary [D, F] of ``sae`` and ``csr``."""
        check_is_fitted(self, "head_")
        if not hasattr(self.head_, "decode"):
            raise AttributeError(f"codes by {self.method} have no components_")
        with torch.inference_mode():
            atoms = self.head_.decode(torch.eye(self.n_components_))  # type: ignore[operator]
            return (preprocess.restore(atoms, self.moments_) - self.moments_.mean.to(atoms)).numpy()

    def explained_variance(self, X: Any) -> float | None:
        """Share of the variance of X, at unit length, that ``sae`` or ``csr`` codes reconstruct.

        Uses at most 50,000 rows, spread evenly. None for methods that do not reconstruct.
        """
        check_is_fitted(self, "head_")
        if not hasattr(self.head_, "decode"):
            return None
        some = np.asarray(X[spread_evenly(len(X), MAX_VARIANCE_ROWS)], np.float32)
        x = preprocess.unit_length(torch.from_numpy(some)).numpy()
        codes = self.with_options(unit_norm=False)
        found = codes.inverse_transform(codes.transform(some))
        return float(r2_score(x, found, multioutput="variance_weighted"))

    def with_options(self, **options: Any) -> ReadableCodes:
        """The same fitted codes with other options and dense output."""
        return copy.copy(self).set_params(sparse_output=False, **options)

    def dense(self, X: Any) -> np.ndarray:
        """Codes [M, D] of X with all dimensions, whatever `n_active` is."""
        return self.with_options(n_active=None, unit_norm=True).transform(X)

    def save(self, path: Path | str) -> None:
        """Write a safetensors file with the options and a checksum in its metadata."""
        with as_input_error(f"cannot write {path}"):
            write_atomic(path, self._pack()[0])

    def save_pretrained(self, folder: Path | str) -> None:
        """Write config.json and model.safetensors, the layout of the Hugging Face hub."""
        weights, config = self._pack()
        with as_input_error(f"cannot write to {folder}"):
            Path(folder).mkdir(parents=True, exist_ok=True)
        write_atomic(Path(folder, WEIGHTS), weights)
        write_atomic(Path(folder, CONFIG), json.dumps(json.loads(config), indent=2) + "\n")

    def _pack(self) -> tuple[bytes, str]:
        """The bytes of a file, and the configuration in it as JSON."""
        check_is_fitted(self, "head_")
        params = self.get_params(deep=False) | {"method": self.method_}  # may differ
        del params["device"]
        params = {name: int(v) if isinstance(v, np.integer) else v for name, v in params.items()}
        if not isinstance(params["random_state"], int):
            params["random_state"] = None
        fitted = {name: getattr(self, name) for name in FITTED}
        config: dict[str, Any] = {"format": FORMAT, "params": params, "fitted": fitted}
        if hasattr(self, "feature_names_in_"):
            config["feature_names"] = [str(name) for name in self.feature_names_in_]
        text = json.dumps(config, sort_keys=True)
        tensors = {f"head.{name}": t for name, t in self.head_.state_dict().items()}
        tensors |= self.moments_._asdict()
        return tensor_bytes(tensors, {"config": text, "sha256": digest(tensors, text)}), text

    @classmethod
    def load(cls, path: Path | str, device: str = "auto") -> Self:
        """Read a file that `save` wrote. Nothing is unpickled; a damaged file is refused."""
        tensors, metadata = read_tensors(Path(path))
        text = metadata.get("config", "")
        if FORMAT not in text:
            raise InputError(f"{path} is not a file of readable codes of this version ({FORMAT})")
        if digest(tensors, text) != metadata.get("sha256"):
            raise InputError(f"{path} is damaged: its checksum does not match")
        if bad := [name for name, t in tensors.items() if not bool(t.isfinite().all())]:
            raise InputError(f"{path} cannot be used: {bad[0]} contains NaN or infinity")
        with as_input_error(f"{path} is not a file of readable codes", Exception):
            config = json.loads(text)
            codes = cls(**config["params"], device=device)
            codes.check_options()
            vars(codes).update({name: config["fitted"][name] for name in FITTED})
            if "feature_names" in config:
                codes.feature_names_in_ = np.array(config["feature_names"], dtype=object)
            mean, scale = (tensors.pop(name).double() for name in Moments._fields)
            if not mean.shape == scale.shape == (codes.n_features_in_,):
                raise ValueError("mean or scale has the wrong length")
            codes.moments_ = Moments(mean, scale)
            with torch.device("meta"):  # load_state_dict compares shapes before it allocates
                head = HEADS[codes.method](codes.moments_.width, codes.n_components_)
            weights = {name.removeprefix("head."): t for name, t in tensors.items()}
            head.load_state_dict(weights, assign=True)
            codes.head_ = head.float().eval().requires_grad_(True)
            codes.method_, codes.names_ = codes.method, None
        return codes

    @classmethod
    def from_pretrained(cls, name: Path | str, device: str = "auto") -> Self:
        """Read a folder that `save_pretrained` wrote, or a repository of the Hugging Face hub."""
        if not Path(name).is_dir():
            hint = "to load from the Hugging Face hub: pip install huggingface_hub"
            hub = import_extra("huggingface_hub", f"{name}: no such folder; {hint}")
            # network, permission, name: the library raises many types
            with as_input_error(f"{name}: no such folder, and not on the hub", Exception):
                name = hub.snapshot_download(str(name), allow_patterns=[WEIGHTS, CONFIG])
        return cls.load(Path(name, WEIGHTS), device)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the dimensions: the given ones, else z0, z1, ... as in the tables of `embed`."""
        count = len(super().get_feature_names_out(input_features))  # checks the arguments
        names = self.names_ or [f"z{k}" for k in range(count)]
        return np.asarray(names, dtype=object)

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    def check_options(self) -> None:
        """Raise InputError for options that no data would make valid."""
        if self.method not in HEADS:
            raise InputError(f"unknown method {self.method!r}: use {', '.join(HEADS)}")
        if self.positives not in ("neighbors", "self"):
            raise InputError(f"positives must be neighbors or self, got {self.positives!r}")
        for name, (least, other) in INTEGERS.items():
            value = getattr(self, name)
            whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
            if value != other and not (whole and value >= least):
                wanted = f"an integer of at least {least}" + (f" or {other!r}" if other else "")
                raise InputError(f"{name} must be {wanted}, got {value!r}")
        if self.n_components != "auto":
            if int(self.n_components) > MAX_COMPONENTS:
                raise InputError(f"n_components must be at most {MAX_COMPONENTS:,}")
            check_n_active(self.n_active, int(self.n_components))

    def _check_output(self, head: Head) -> None:
        if self.sparse_output and self.n_active is None and not head.zeros:
            raise InputError(f"sparse_output with {self.method} needs n_active: no entry is 0")
        if not self.unit_norm and not hasattr(head, "decode"):
            raise InputError(f"unit_norm=False needs sae or csr, got {self.method}")

    def _as_rows(self, X: Any, *, reset: bool) -> np.ndarray:
        """X as a numeric array without a copy; its columns are recorded (`reset`) or compared."""
        # finiteness is checked block by block: scikit-learn's check may copy the whole array
        X = as_numpy(X) if isinstance(X, Tensor) else X
        return validate_data(self, X, reset=reset, dtype="numeric", ensure_all_finite=False)

    def _draw_rows(self, count: int, seed: int) -> np.ndarray:
        """Indices of the rows to fit on: all `count`, or `max_samples` of them at random."""
        if self.max_samples is None or self.max_samples >= count:
            return np.arange(count)
        drawn = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        return np.sort(drawn[: self.max_samples].numpy())

    def _find_partners(
        self, rows: Tensor, dim: int, moments: Moments, path: Path | str | None, progress: Progress
    ) -> tuple[Tensor, float]:
        """Rows [N, K] that partners are drawn from, and the recall of their search."""
        n = len(rows)
        if self.positives == "self" or self.method == "sae":  # reconstruction has no partners
            return torch.arange(n)[:, None], 1.0
        k = min(int(_auto(self.n_neighbors, choose_neighbors(n, dim))), n - 1)
        key = f"{n} {k} {digest(moments._asdict())}"
        if path is not None:
            # no such file, or it is damaged: NumPy raises many types
            with suppress(Exception), np.load(path, allow_pickle=False) as saved:
                if str(saved["key"]) == key:
                    return torch.from_numpy(saved["partners"]), float(saved["recall"])
        began = time.monotonic()
        partners, recall = nearest(rows, k, progress)
        if path is not None and time.monotonic() - began > NEIGHBOR_SECONDS:
            write_saved(path, np.savez, key=key, partners=partners.cpu().numpy(), recall=recall)
        return partners, recall


def _auto(option: Any, choice: int) -> Any:
    return choice if option == "auto" else option


def choose_components(rows: int) -> int:
    """Dimensions to fit: the power of two nearest to 4 sqrt(rows), at most rows / 4 and 4096."""
    wanted = min(4 * math.sqrt(rows), rows / 4, 4096)
    return 2 ** max(1, round(math.log2(max(wanted, 1))))


def choose_batch(rows: int, dim: int) -> int:
    """Pairs per step: a multiple of 8, or all rows."""
    wanted = min(rows, max(512, dim // 2))
    return wanted - wanted % 8 if wanted >= 8 else wanted


def choose_neighbors(rows: int, dim: int) -> int:
    """Half the rows per dimension, within 10 to 50, at most a tenth of all rows."""
    return min(max(rows // (2 * dim), 10), 50, max(1, rows // 10))


def group_rate(steps: int) -> float:
    """Learning rate of later groups: dimensions then depend less on the seed.

    A seventh of the usual rate from 600 steps on; fits of up to 150 steps need all of it.
    """
    return LEARNING_RATE / min(max(steps / 75 - 1, 1), 7)


def choose_steps(rows: int, batch: int) -> int:
    """About twelve epochs, but no fewer steps than a small set needs."""
    return round(min(max(EPOCHS * rows / batch, min(600, 100 + rows)), 5000))


def _batches(n: int, batch: int, seed: int, steps: int, device: torch.device) -> Iterator[Tensor]:
    """Row indices of each step; every epoch has its own order."""
    per_epoch = n // batch
    for step in range(steps):
        if step % per_epoch == 0:
            order = epoch_order(seed, step // per_epoch, n).to(device)
        start = step % per_epoch * batch
        yield order[start : start + batch]


def _as_pairs(pairs: Any, n: int) -> Tensor:
    """Pairs as int64 [N, K]."""
    found = as_numpy(pairs)
    found = found[:, None] if found.ndim == 1 else found
    if found.ndim != 2 or len(found) != n or not found.size or found.dtype.kind not in "iu":
        got = f"{found.dtype} {list(found.shape)}"
        raise InputError(f"pairs must be integers [{n}] or [{n}, K], got {got}")
    low, high = found.min(), found.max()
    if low < 0 or high >= n:
        raise InputError(f"pairs must be row numbers from 0 to {n - 1}, got {low} to {high}")
    return torch.from_numpy(found.astype(np.int64))
