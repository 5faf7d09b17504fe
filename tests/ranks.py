"""The processes of the distributed tests: python -m tests.ranks SCENARIO WORLD FOLDER.

Forks WORLD processes that meet over gloo; each writes FOLDER/rank-R.safetensors. Under torchrun,
which starts them, `command` is the scenario.
"""

import datetime
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from safetensors.torch import save_file
from torch import Tensor

from bayesncl import distributed, train
from bayesncl.method import losses
from bayesncl.method.encoder import Encoder, build_model, extract
from bayesncl.method.rng import epoch_order
from bayesncl.recipes import Recipe
from bayesncl.training import loop
from bayesncl.training.loader import batch_rows
from bayesncl.training.step import Batch, forward
from tests.commands import SETTINGS, call
from tests.conftest import tiny_images, tiny_recipe

N = 70  # images: 4 batches of 16 and 6 left over
EPOCHS = 3  # 12 steps
CPU = torch.device("cpu")
METHODS = ("bayesncl", "bayesncl-gs", "ncl-ipw")


def double(recipe: Recipe) -> Encoder:
    """In float64, where steps do not amplify rounding."""
    return build_model(recipe).double()


def recipe_of(method: str = "bayesncl") -> Recipe:
    rates = ("optimizer.lr=0.05", "gate.lr=0.01")
    return tiny_recipe(method, f"run.epochs={EPOCHS}", "run.log_every=4", *rates)


def compare(folder: Path) -> dict[str, Tensor]:
    """Everything that must not depend on the number of processes."""
    out: dict[str, Tensor] = {}
    images = tiny_images(N)
    loop.build_model = double
    for method in METHODS:
        recipe = recipe_of(method)
        model = double(recipe).train()
        rows = batch_rows(epoch_order(0, 0, N), 0, 16)
        pixels = torch.from_numpy(images.pixels)[rows]
        loss, averages, _ = forward(model, Batch(pixels, rows, torch.tensor(0), torch.float32))
        loss.backward()
        distributed.sum_gradients(model.parameters())
        out[f"{method}.loss"] = distributed.all_reduce_sum(averages[:3])
        for name, p in model.named_parameters():
            out[f"{method}.gradient.{name}"] = p.grad.contiguous()
        trained = train(recipe, images, folder / f"{method}-{distributed.rank()}", device=CPU)
        for name, value in trained.state_dict().items():
            out[f"{method}.weight.{name}"] = value.contiguous()
    fresh = build_model(recipe_of())
    for mode, n in (("sound", N), ("paper", N), ("sound", 1)):  # 1 image: a process has none
        found = extract(fresh, tiny_images(n), mode, batch=8)
        for what, array in found._asdict().items():
            out[f"extract.{mode}-{n}.{what}"] = torch.from_numpy(array).float()
    return out


def fail_in_step(step: int, fail: Callable[[], None]) -> None:
    """Let the last process call `fail` in a step."""
    info_nce_share, calls = losses.info_nce_share, 0

    def fatal(*arguments: object) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == step and distributed.rank() == distributed.world_size() - 1:
            fail()
        return info_nce_share(*arguments)

    losses.info_nce_share = fatal


def train_and_die(folder: Path) -> dict[str, Tensor]:
    """The last process is killed in step 7."""
    fail_in_step(7, lambda: os.kill(os.getpid(), signal.SIGKILL))
    return train_on(folder)


def train_and_hang(folder: Path) -> dict[str, Tensor]:
    """Process 0 comes late to a barrier, which waits; the last one stops answering in step 3."""

    def hang() -> None:
        time.sleep(6)
        os._exit(0)

    if distributed.rank() == 0:
        time.sleep(TIMEOUT_SECONDS + 1)
    distributed.barrier()
    print("all passed the barrier", file=sys.stderr, flush=True)
    fail_in_step(3, hang)
    return train_on(folder)


def train_on(folder: Path) -> dict[str, Tensor]:
    """Train, or resume, in FOLDER/run."""
    loop.build_model = double
    model = train(recipe_of(), tiny_images(N), folder / "run", device=CPU)
    return {name: p.detach().contiguous() for name, p in model.named_parameters()}


SCENARIOS = {f.__name__: f for f in (compare, train_and_die, train_and_hang, train_on)}
TIMEOUT_SECONDS = 3  # of a collective in train_and_hang


def work(scenario: str, rank: int, folder: Path) -> None:
    """One process; another process that ends must not end it, and it must not wait for it."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    if scenario == "train_and_hang":
        distributed.TIMEOUT = datetime.timedelta(seconds=TIMEOUT_SECONDS)
    distributed.start()
    save_file(SCENARIOS[scenario](folder), folder / f"rank-{rank}.safetensors")
    distributed.stop()


def run_processes(scenario: str, world: int, folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=work, args=(scenario, rank, folder)) for rank in range(world)]
    for child in children:
        child.start()
    for child in children:
        child.join()


def command(folder: str) -> int:
    """`bayesncl train`, whose last process is killed in step 7, the first time."""
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        fail_in_step(7, lambda: os.kill(os.getpid(), signal.SIGKILL))
    return call("train", "scenes", "--out", folder, *SETTINGS, "--set", "run.epochs=3")


if __name__ == "__main__":
    _, scenario, world, folder = sys.argv
    if scenario == "command":
        sys.exit(command(folder))
    run_processes(scenario, int(world), Path(folder))
