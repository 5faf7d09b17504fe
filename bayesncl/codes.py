"""ReadableCodes: a scikit-learn transformer from the embeddings of any model to non-negative codes one can read."""

from __future__ import annotations

import copy
import inspect
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from . import distributed, shelf
from .data.images import Progress
from .draws import make_key, uniform
from .errors import InputError, or_refuse
from .feed import epoch_order
from .files import digest
from .heads import HEADS, Features, Head
from .lars import Light
from .neighbours import nearest
from .objective import check_keep, keep_strongest
from .progress import Display
from .rows import Moments, Stream, hold, measure, take
from .schedule import warmup_cosine

RATE, DECAY, WARMUP, EPOCHS = 2e-3, 1e-4, 50, 12
START_ROWS = 8192  # that a head may begin from
BLOCK = {"cpu": 256, "cuda": 8192}  # rows encoded at a time
# options that are whole numbers: the least, and what else they may be
NUMBERS = {
    "dim": (1, "auto"), "steps": (0, "auto"), "batch": (1, "auto"), "neighbours": (1, "auto"), "keep": (1, None),
    "max_rows": (2, None),
}  # fmt: skip
SAVE_SECONDS = 60.0  # between checkpoints


class _AdamW(Light, torch.optim.AdamW):
    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


class ReadableCodes(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Readable codes from the embeddings of any model: each dimension fires on rows that belong together.

    A small head is trained on frozen embeddings X [N, F], without labels; neighbours in X serve as pairs that should
    get the same code. Rows are brought to unit length, centred and scaled inside.
    A row's code depends on that row alone.

    Parameters
    ----------
    dim : D, dimensions of the codes; ``"auto"`` takes about 4 sqrt(N), at most N / 4, as a power of two (1024 for
        50,000 rows, 128 for 1,000).
    method : ``prototypes`` (likeness to D prototypes that share the rows equally), ``ncl`` (non-negative contrastive),
        ``bayesncl`` (the same with gates), ``sae`` (TopK sparse autoencoder), ``csr`` (that with contrast).
    keep : each row keeps this many of its strongest dimensions, the others are 0; None keeps all.
    random_state : int, RandomState or None. The same int gives the same codes on one machine.
    positives : what a row should agree with: its ``neighbours`` or it``self``. Pairs given to `fit` replace both.
    neighbours : how many nearest rows a partner is drawn from; ``"auto"`` takes N / (2 D), half the rows that fall to a
        dimension, but 10 to 50 (fewer for less than 100 rows).
    steps, batch : of the training; ``"auto"`` chooses by N and D.
    max_rows : more rows than this are not looked at in `fit`: as many are drawn from them at random. None for no limit.
    sparse_output : give a scipy CSR matrix. ``prototypes`` need `keep` for that, since none of their entries is 0.
    device : ``auto`` (a GPU if there is one), or the name of a torch device.
    verbose : show on standard error how far `fit` is, unless it is given a `progress`.

    Attributes
    ----------
    dim_ : int, D.
    n_features_in_ : int, F.
    n_iter_ : int, steps taken.
    loss_ : float, mean loss of the last steps.
    recall_ : float, share of the true neighbours found; 1 unless rows were so many that faiss was used.
    interrupted_ : bool, whether Ctrl-C ended `fit` before its last step.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X = load_digits().data
    >>> z = ReadableCodes(dim=32, keep=5).fit(X).transform(X)
    >>> z.shape, int((z > 0).sum(1).max())
    ((1797, 32), 5)
    """

    def __init__(
        self,
        dim: int | str = "auto",
        method: str = "prototypes",
        keep: int | None = None,
        random_state: Any = 0,
        *,
        positives: str = "neighbours",
        neighbours: int | str = "auto",
        steps: int | str = "auto",
        batch: int | str = "auto",
        max_rows: int | None = 1_000_000,
        sparse_output: bool = False,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        self.dim = dim
        self.method = method
        self.keep = keep
        self.random_state = random_state
        self.positives = positives
        self.neighbours = neighbours
        self.steps = steps
        self.batch = batch
        self.max_rows = max_rows
        self.sparse_output = sparse_output
        self.device = device
        self.verbose = verbose

    def fit(
        self, X: Any, y: Any = None, *, pairs: Any = None, checkpoint: Path | str | None = None,
        progress: Progress | None = None,
    ) -> ReadableCodes:  # fmt: skip
        """Learn the codes of X.

        Parameters
        ----------
        X : [N, F] numpy array, memory-mapped array (read in blocks if it does not fit in memory) or torch tensor.
        y : not used.
        pairs : int [N] or [N, K]: the rows that row i should agree with, in place of its neighbours.
        checkpoint : file that keeps the state of a long fit, written every minute; if it is there, the fit resumes
            from it and ends as it would have. It is removed at the end.
        progress : called with (done, total, what).

        Returns
        -------
        self. Ctrl-C ends the training early and keeps what was learned (`interrupted_`); a fit that fails leaves the
        estimator as it was.
        """
        before, display = vars(self).copy(), Display(quiet=not self.verbose)
        distributed.start()  # which chooses the GPU
        kind = _device(self.device).type
        try:  # also where the caller has turned gradients or precision off, as one does to embed
            with torch.inference_mode(False), torch.enable_grad(), torch.autocast(kind, enabled=False):
                return self._fit(X, pairs, None if checkpoint is None else Path(checkpoint), progress or display.count)
        except BaseException:
            self.__dict__ = before
            raise
        finally:
            display.close()

    def _fit(self, X: Any, pairs: Any, checkpoint: Path | None, say: Progress) -> ReadableCodes:
        self._check_options()
        source = self._as_rows(X, reset=True)
        device = _device(self.device)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        partners = None if pairs is None else _as_pairs(pairs, len(source))
        chosen = self._choose_rows(len(source), seed, partners is not None)
        count = len(source) if chosen is None else len(chosen)
        self.dim_ = choose_dim(count) if self.dim == "auto" else int(self.dim)
        check_keep(self.keep, self.dim_)
        moments = measure(source, chosen)
        rows = hold(source, chosen, moments, device)
        batch = choose_batch(count, self.dim_) if self.batch == "auto" else min(int(self.batch), count)
        if batch % distributed.world_size():
            raise InputError(f"a batch of {batch} rows cannot be shared by {distributed.world_size()} processes")
        total = choose_steps(count, batch) if self.steps == "auto" else int(self.steps)

        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # of the CPU alone
            head = HEADS[self.method](moments.width, self.dim_).to(device, torch.float32).train()
        self._check_output(head)
        head.start(rows[torch.linspace(0, count - 1, min(count, START_ROWS), device=device).long()])
        mark = self._fingerprint(moments, seed, batch, total, count, partners)
        optimiser = _AdamW(head.parameters(), lr=RATE, weight_decay=DECAY, fused=True)
        recent = torch.zeros(max(1, min(50, total)), dtype=torch.float32, device=device)
        state = shelf.State(head, optimiser, mark, recent)
        found = None if checkpoint is None else state.read(checkpoint, count)
        partners = found if partners is None else partners
        if partners is None:
            partners, state.recall = self._find_partners(rows, say)
        self._train(rows, partners.to(device), state, seed, batch, total, checkpoint, say)
        self.moments_, self.head_, self.recall_ = moments, head.eval().cpu(), state.recall
        self.method_ = self.method
        return self

    def _train(
        self, rows: Tensor | Stream, partners: Tensor, state: shelf.State, seed: int, batch: int, total: int,
        checkpoint: Path | None, say: Progress,
    ) -> None:  # fmt: skip
        """The loop: a batch and its partners, forward, loss, backward, update."""
        head, optimiser, world = state.head, state.optimiser, distributed.world_size()
        warmup = min(WARMUP, total // 4)
        written = time.monotonic()
        self.interrupted_ = False
        try:
            for order in _batches(len(rows), batch, seed, state.step, total, partners.device):
                step = state.step
                turn = uniform(make_key(seed, step, order), 1).squeeze(1)  # the same draw however rows are shared
                other = partners[order, (turn * partners.shape[1]).long()]
                mine = slice(distributed.rank() * (batch // world), (distributed.rank() + 1) * (batch // world))
                for group in optimiser.param_groups:
                    group["lr"] = warmup_cosine(step + 1, RATE, warmup, total + 1, start=RATE / (warmup + 1))
                optimiser.zero_grad()
                terms = head.loss(head(rows[torch.cat([order[mine], other[mine]])]))
                terms.loss.backward()
                loss = terms.loss.detach().clone()
                distributed.sum_gradients(head.parameters(), loss)
                optimiser.step()
                state.step += 1
                state.recent[step % len(state.recent)] = loss
                say(state.step, total, "training")
                if checkpoint is not None and time.monotonic() - written > SAVE_SECONDS:
                    state.write(checkpoint, partners)
                    written = time.monotonic()
        except KeyboardInterrupt:
            if world > 1 or state.step == 0:
                raise
            self.interrupted_ = True
        except BaseException:
            if checkpoint is not None:
                state.write(checkpoint, partners)
            raise
        self.n_iter_ = state.step
        self.loss_ = float(state.recent[: state.step].mean())  # NaN before the first step
        if checkpoint is not None and self.interrupted_:
            state.write(checkpoint, partners)
        elif checkpoint is not None and distributed.rank() == 0:
            checkpoint.unlink(missing_ok=True)

    def transform(self, X: Any) -> Any:
        """Codes of X.

        Parameters
        ----------
        X : [M, F], as for `fit`.

        Returns
        -------
        [M, D] float32, non-negative, rows of unit length; numpy, or scipy CSR with `sparse_output`.
        """
        check_is_fitted(self, "head_")
        self._check_options()
        check_keep(self.keep, self.dim_)
        self._check_output(self.head_)
        source = self._as_rows(X, reset=False)
        device = _device(self.device)
        head = copy.deepcopy(self.head_).to(device) if device.type != "cpu" else self.head_
        if not self.sparse_output:
            out = np.empty((len(source), self.dim_), np.float32)
            for place, z in self._encode(source, head, device):
                torch.from_numpy(out)[place].copy_(z)
            return out
        parts = [scipy.sparse.csr_matrix((0, self.dim_), dtype=np.float32)]  # there may be no rows
        parts += [scipy.sparse.csr_matrix(z.cpu().numpy()) for _, z in self._encode(source, head, device)]
        return scipy.sparse.vstack(parts, format="csr")

    @torch.inference_mode()
    def _encode(self, source: Any, head: Head, device: torch.device) -> Iterator[tuple[slice, Tensor]]:
        """Blocks of codes. All have one shape, so that the same sums are taken in the same order whatever the batch."""
        size = BLOCK.get(device.type, BLOCK["cpu"])
        block = torch.zeros(size, self.moments_.width, dtype=torch.float32, device=device)
        for start in range(0, len(source), size):
            place = slice(start, min(start + size, len(source)))
            n = place.stop - start
            block[:n] = take(source, place, self.moments_, device)
            yield place, self.finish(head(block))[:n]

    def finish(self, features: Features) -> Tensor:
        """Codes [n, D] of what the head says: the strongest kept, no row empty."""
        z = keep_strongest(features.gated, self.keep)
        if self.head_.zeros:  # where nothing fires, what came nearest to it does
            nearest_to = features.aux if features.aux is not None else features.z
            lone = torch.nn.functional.one_hot(nearest_to.argmax(1), self.dim_).to(z.dtype)
            z = torch.where((z > 0).any(1, keepdim=True), z, lone)
        return z

    def save(self, path: Path | str) -> None:
        """Write a safetensors file with the options and a checksum in its metadata."""
        self._check_fitted_so()
        shelf.save(self, Path(path))

    @classmethod
    def load(cls, path: Path | str, device: str = "auto") -> ReadableCodes:
        """Read what `save` wrote; nothing is unpickled, and a damaged file is refused."""
        return shelf.load(cls, Path(path))[0].set_params(device=device)

    def save_pretrained(self, folder: Path | str) -> None:
        """Write config.json and model.safetensors, the form of the Hugging Face hub."""
        self._check_fitted_so()
        shelf.save_folder(self, Path(folder))

    @classmethod
    def from_pretrained(cls, name: Path | str, device: str = "auto") -> ReadableCodes:
        """Read a folder that `save_pretrained` wrote, or one of the Hugging Face hub by its id."""
        return shelf.load_folder(cls, name).set_params(device=device)

    @property
    def _n_features_out(self) -> int:
        return self.dim_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    def _check_fitted_so(self) -> None:
        """What is written says by which method it was fitted, and is built again so."""
        check_is_fitted(self, "head_")
        if self.method_ != self.method:
            raise InputError(f"fitted by {self.method_}, and method is {self.method!r} now: fit again before saving")

    def _check_options(self) -> None:
        if self.method not in HEADS:
            raise InputError(f"no method {self.method!r}; there are {', '.join(HEADS)}")
        if self.positives not in ("neighbours", "self"):
            raise InputError(f"positives must be neighbours or self, got {self.positives!r}; give pairs to fit")
        for name, (least, otherwise) in NUMBERS.items():
            value = getattr(self, name)
            whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
            if value != otherwise and not (whole and value >= least):
                raise InputError(f"{name} must be a whole number, {least} or more, got {value!r}")
        if self.dim != "auto" and int(self.dim) > shelf.MAX_WIDTH:
            raise InputError(f"dim must be at most {shelf.MAX_WIDTH}, got {self.dim}")
        if self.dim != "auto":
            check_keep(self.keep, int(self.dim))

    def _check_output(self, head: Head) -> None:
        if self.sparse_output and self.keep is None and not head.zeros:
            raise InputError(f"sparse_output needs keep=...: no entry of a code by {self.method} is 0")

    def _as_rows(self, X: Any, *, reset: bool) -> Any:
        """X as a matrix of numbers, not copied; columns are counted (`reset`) or compared with those of `fit`."""
        if not isinstance(X, Tensor):
            # infinities and NaN are looked for in blocks, with the sums: scikit-learn's check may copy the whole
            X = validate_data(self, X, reset=reset, dtype="numeric", ensure_all_finite=False, ensure_min_samples=1)
            if X.dtype.kind not in "fiub":
                raise InputError(f"X must hold real numbers, got {X.dtype}")
        else:
            if X.ndim != 2:
                raise InputError(f"X must be a matrix [N, F], got a tensor of shape {list(X.shape)}")
            if X.is_complex():
                raise InputError("X must hold real numbers, got complex ones")
            if X.layout != torch.strided:
                raise InputError("X is a sparse tensor, but dense data is required: give X.to_dense()")
            with or_refuse("X does not fit", ValueError):
                X = validate_data(self, X.detach(), reset=reset, skip_check_array=True)
        if reset and len(X) < 2:
            raise InputError(f"n_samples={len(X)}: codes are learned from what rows share, so 2 or more are needed")
        if reset and X.shape[1] > shelf.MAX_WIDTH:  # which `load` would refuse
            raise InputError(f"X has {X.shape[1]:,} columns, at most {shelf.MAX_WIDTH:,} will do: pool them first")
        return X

    def _choose_rows(self, n: int, seed: int, paired: bool) -> Tensor | None:
        """Numbers of the rows to fit on; None for all."""
        if self.max_rows is None or n <= self.max_rows:
            return None
        if paired:
            raise InputError(f"pairs for {n} rows, but max_rows={self.max_rows}: give max_rows=None, or fewer rows")
        generator = torch.Generator().manual_seed(seed)
        return torch.randperm(n, generator=generator)[: self.max_rows].sort().values

    def _find_partners(self, rows: Tensor | Stream, say: Progress) -> tuple[Tensor, float]:
        """[N, K] the rows that each row's partner is drawn from, and the recall of their search."""
        n = len(rows)
        if self.positives == "self" or self.method == "sae":  # reconstruction has no partners
            return torch.arange(n)[:, None], 1.0
        k = choose_neighbours(n, self.dim_) if self.neighbours == "auto" else min(int(self.neighbours), n - 1)
        return nearest(rows, k, say)

    def _fingerprint(
        self, moments: Moments, seed: int, batch: int, total: int, count: int, pairs: Tensor | None
    ) -> dict[str, Any]:
        """What a checkpoint must agree with."""
        options = [self.method, self.dim_, self.positives, self.neighbours, seed, batch, total, count]
        given = {} if pairs is None else {"pairs": digest({"pairs": pairs})}
        return {"options": [str(o) for o in options], "moments": digest(moments._asdict()), **given}


def choose_dim(rows: int) -> int:
    """Dimensions for this many rows: the power of two nearest to 4 sqrt(rows), at most rows / 4 and 4096."""
    wanted = min(4 * math.sqrt(rows), rows / 4, 4096)
    return 2 ** max(1, round(math.log2(max(wanted, 1))))


def choose_batch(rows: int, dim: int) -> int:
    """Pairs a step, a multiple of 8 (so that 2, 4 or 8 processes can share them) unless rows are fewer."""
    wanted = min(rows, max(512, dim // 2))
    return wanted - wanted % 8 if wanted >= 8 else wanted


def choose_neighbours(rows: int, dim: int) -> int:
    """Neighbours of a row: half of the rows that fall to each dimension, but 10 to 50, and at most a tenth of all."""
    return min(max(rows // (2 * dim), 10), 50, max(1, rows // 10))


def choose_steps(rows: int, batch: int) -> int:
    """Steps: some ten times through the rows, but no fewer than a small set needs."""
    return round(min(max(EPOCHS * rows / batch, min(600, 100 + rows)), 5000))


def _batches(n: int, batch: int, seed: int, first: int, total: int, device: torch.device) -> Iterator[Tensor]:
    """Numbers of the rows of steps first..total-1; an epoch goes through the rows in an order of its own."""
    each = n // batch
    for step in range(first, total):
        if step == first or step % each == 0:
            order = epoch_order(seed, step // each, n).to(device)
        start = step % each * batch
        yield order[start : start + batch]


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with or_refuse(f"no device {name!r} here", RuntimeError, AssertionError, TypeError):
        return torch.empty(0, device=name).device


def _as_pairs(pairs: Any, n: int) -> Tensor:
    """[N, K] int64."""
    found = pairs.detach().cpu() if isinstance(pairs, Tensor) else torch.from_numpy(np.array(pairs))
    if found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
        raise InputError(f"pairs must be numbers of rows, got {found.dtype}")
    found = found.long()
    if found.ndim == 1:
        found = found[:, None]
    if found.ndim != 2 or len(found) != n or not found.shape[1]:
        raise InputError(f"pairs must have a row for each of the {n} rows of X, got shape {list(found.shape)}")
    if bool(((found < 0) | (found >= n)).any()):
        raise InputError(f"pairs must be numbers from 0 to {n - 1}, got {int(found.min())} to {int(found.max())}")
    return found
