"""Trainings with and without the cockpit, and all that can be told from outside of what it did to them.

``python -m reliability.harmless memory STEPS`` or ``... bits STEPS`` runs long ones, and prints a line of JSON.
"""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import os
import random
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cockpit import Cockpit, CockpitWarning, configuration
from cockpit.schedules import linear

SAMPLES, CLASSES = 6, 3


class Transformer(nn.Module):
    """An encoder layer with dropout on sequences, with learned positions and a scale of no dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Linear(4, 8)
        self.positions = nn.Embedding(5, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=True)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1]).expand(x.shape[:2])
        return self.scale * self.head(self.block(self.read(x) + self.positions(places)).mean(1))


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(10, 8), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(8, CLASSES)
    )


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, stride=2),
        nn.BatchNorm2d(4),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (10,)),
    "cnn": (cnn, (2, 10, 10)),
    "transformer": (Transformer, (5, 4)),
}
"""What makes the model, and the shape of a sample."""

Settings = dict[str, Any]


def every(label: str, interval: int = 1) -> Settings:
    return {"quantities": configuration(label, linear(interval))}


WATCHES: dict[str, Callable[[], Settings]] = {
    "economy": partial(every, "economy"),
    "business": partial(every, "business", 5),
    "full": partial(every, "full", 5),
    "health": partial(every, "health"),
    "overhead": lambda: {"quantities": configuration("business"), "overhead": 0.05},
    "doctor": lambda: every("health", 5) | {"doctor": True, "on_finding": "log"},
    "subsample": lambda: every("full", 5) | {"subsample": 3},
}
"""How a cockpit is made, by name."""


@dataclass
class Trouble:
    """What is unusual about a training; each function changes what it is given, or returns it anew.

    Attributes:
        size: Number of samples of a step.
        model: Returns the model in place of the usual one.
        parameters: Chooses what the optimizer gets.
        inputs: Changes the inputs of a step.
        losses: Changes the losses of the samples.
        backward: Does the backward pass.
        update: Makes the update.
        changes: Is called between two steps.
        lr: Learning rate.
        autocast: Data type of the forward pass.
    """

    size: int = SAMPLES
    model: Callable[[nn.Module], nn.Module] = lambda model: model
    parameters: Callable[[nn.Module], Any] = lambda model: model.parameters()
    inputs: Callable[[int, Tensor], Tensor] = lambda step, x: x
    losses: Callable[[int, Tensor], Tensor] = lambda step, losses: losses
    backward: Callable[[int, nn.Module, Tensor], None] = lambda step, model, loss: loss.backward()
    update: Callable[[int, Any], None] = lambda step, optimizer: optimizer.step()
    changes: Callable[[int, nn.Module], None] = lambda step, model: None
    lr: float = 0.05
    autocast: torch.dtype | None = None


@dataclass
class Outcome:
    """What a training left behind.

    Attributes:
        steps: Digests of every bit of every step, by name.
        errors: What the user's own code raised, by step.
        warned: Texts of the cockpit's warnings.
        events: Kind and subject of the events in the run file, in order.
        output: What was recorded.
    """

    steps: list[dict[str, str]] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)
    warned: list[str] = field(default_factory=list)
    events: list[tuple[str, str]] = field(default_factory=list)
    output: dict[int, Any] = field(default_factory=dict)


# -- every bit ------------------------------------------------------------------------------------


def digest(value: Any) -> str:
    """Return a digest of a value; of a tensor of its bits, its kind and how it lies in memory."""
    if isinstance(value, Tensor):
        data = value.detach().contiguous().reshape(-1)
        told = f"{value.dtype} {tuple(value.shape)} {value.stride()} {value.requires_grad}".encode()
        told += data.view(torch.uint8).numpy().tobytes()
    else:
        told = repr(value).encode()
    return hashlib.blake2b(told, digest_size=8).hexdigest()


def random_states() -> dict[str, Any]:
    """Return the states of the global random generators."""
    state = np.random.get_state()  # noqa: NPY002
    numpy = [part.tolist() if isinstance(part, np.ndarray) else part for part in state]
    return {"torch": torch.get_rng_state(), "numpy": numpy, "random": random.getstate()}


def bits(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Return digests of all that a training is made of."""
    found: dict[str, Any] = {f"state {name}": t for name, t in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        found |= {f"parameter {name}": parameter, f"gradient {name}": parameter.grad}
        for key, value in optimizer.state.get(parameter, {}).items():
            found[f"optimizer {name} {key}"] = value
    found["modes"] = [module.training for module in model.modules()]
    found |= {f"random {name}": state for name, state in random_states().items()}
    return {name: digest(value) for name, value in found.items()}


# -- all that is global ---------------------------------------------------------------------------


def defaults() -> dict[str, Any]:
    """Return what is set for the whole process, or for the whole thread."""
    cudnn = torch.backends.cudnn
    loggers = {"": logging.getLogger(), "cockpit": logging.getLogger("cockpit")}
    return {
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "anomalies": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "autocast cache": torch.is_autocast_cache_enabled(),
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,
        ),
        "precision": torch.get_float32_matmul_precision(),
        "denormals": (torch.ones(1) * 1e-40).item() != 0,
        "backends": (
            torch.backends.mkldnn.enabled,
            cudnn.enabled,
            cudnn.benchmark,
            cudnn.deterministic,
        ),
        "checks": torch.distributions.Distribution._validate_args,
        "function modes": torch._C._len_torch_function_stack(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "warnings": (list(warnings.filters), warnings.showwarning),
        "loggers": {n: (o.level, list(o.handlers), o.propagate) for n, o in loggers.items()},
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "hooks": (sys.excepthook, sys.unraisablehook, threading.excepthook, sys.displayhook),
        "tracing": (sys.gettrace(), sys.getprofile(), threading.gettrace()),
        "collector": (gc.isenabled(), gc.get_threshold(), list(gc.callbacks), gc.get_debug()),
        "numpy": (np.geterr(), np.get_printoptions()),
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "streams": (sys.stdout, sys.stderr, sys.stdin),
        "limits": (sys.getrecursionlimit(), sys.getswitchinterval()),
    }


def surface(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return what hangs on a model and an optimizer: attributes by name, and hooks."""
    found: dict[str, Any] = {"optimizer": _attributes(optimizer)}
    for name, module in model.named_modules():
        found[f"module {name}"] = _attributes(module)
    for name, parameter in model.named_parameters():
        hooks = (parameter._backward_hooks, parameter._post_accumulate_grad_hooks)
        found[f"parameter {name}"] = (sorted(vars(parameter)), [dict(h or {}) for h in hooks])
    everywhere = vars(torch.nn.modules.module)
    found["all modules"] = {
        name: dict(hooks)
        for name, hooks in everywhere.items()
        if name.startswith("_global_") and isinstance(hooks, dict)
    }
    return found


def _attributes(owner: Any) -> dict[str, Any]:
    """Return the attributes of an object, those that hold hooks with what they hold."""
    return {
        name: dict(value) if "hook" in name and isinstance(value, dict) else None
        for name, value in vars(owner).items()
    } | {"class": type(owner)}


@contextmanager
def running(calls: list[str]) -> Iterator[None]:
    """Note which functions of the package are called."""

    def note(frame: Any, event: str, argument: Any) -> None:
        name = str(frame.f_globals.get("__name__", ""))
        if event == "call" and name.partition(".")[0] == "cockpit":
            calls.append(f"{name}.{frame.f_code.co_name}")

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


# -- the training ---------------------------------------------------------------------------------


class Training:
    """A training loop, with or without a cockpit.

    Args:
        kind: Of the model.
        settings: Of the cockpit; None for a training without one.
        trouble: What is unusual about it.
    """

    def __init__(
        self, kind: str, settings: Settings | None = None, trouble: Trouble | None = None
    ) -> None:
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        random.seed(0)
        self.trouble = trouble or Trouble()
        make, self.shape = MODELS[kind]
        self.model = self.trouble.model(make())
        trained = [p for p in self.trouble.parameters(self.model) if p.requires_grad]
        self.optimizer = torch.optim.SGD(trained, lr=self.trouble.lr, momentum=0.9)
        if kind == "transformer":
            self.optimizer = torch.optim.AdamW(trained, lr=self.trouble.lr / 5)
        self.before = surface(self.model, self.optimizer)
        self.watch: Cockpit | None = None
        if settings is not None:
            self.watch = Cockpit(self.model, optimizer=self.optimizer, **settings)
        self.step = 0

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return a batch, drawn from all three global generators."""
        dtype = next(p.dtype for p in self.model.parameters() if p.dtype.is_floating_point)
        x = torch.randn(self.trouble.size, *self.shape)
        x = x * random.uniform(0.5, 1.5) + np.random.rand()  # noqa: NPY002
        y = torch.randint(CLASSES, (self.trouble.size,))
        return self.trouble.inputs(step, x.to(dtype)), y

    def losses(self, step: int) -> Tensor:
        x, y = self.batch(step)
        dtype = self.trouble.autocast
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            losses = F.cross_entropy(self.model(x), y, reduction="none")
        return self.trouble.losses(step, losses)

    def once(self) -> None:
        """Do one step, of which nothing is left when this returns."""
        step, trouble = self.step, self.trouble
        self.step += 1
        trouble.changes(step, self.model)
        self.optimizer.zero_grad(set_to_none=step % 2 == 0)
        losses = self.losses(step)
        loss = losses.mean() if trouble.size else losses.sum()
        if self.watch is None:
            trouble.backward(step, self.model, loss)
        else:
            with self.watch(step, loss=loss, individual_losses=losses):
                trouble.backward(step, self.model, loss)
        trouble.update(step, self.optimizer)


def train(
    kind: str,
    settings: Settings | None,
    steps: int,
    trouble: Trouble | None = None,
    prepare: Callable[[Cockpit], None] | None = None,
) -> Outcome:
    """Train for some steps, and return every bit of it.

    An exception of the user's own code is caught by the user, who goes on with the next step.

    Args:
        kind: Of the model.
        settings: Of the cockpit; None for a training without one.
        steps: How many.
        trouble: What is unusual about it.
        prepare: Is called with the cockpit before the first step.
    """
    outcome = Outcome()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CockpitWarning)
        training = Training(kind, settings, trouble)
        if prepare is not None and training.watch is not None:
            prepare(training.watch)
        for step in range(steps):
            try:
                training.once()
            except Exception as error:
                outcome.errors[step] = f"{type(error).__name__}: {error}"
            outcome.steps.append(bits(training.model, training.optimizer))
        if training.watch is not None:
            outcome.output = training.watch.get_output()
            training.watch.close()
            frame = training.watch.run().events()
            outcome.events = list(zip(frame["kind"], frame["subject"], strict=True))
    outcome.steps.append(bits(training.model, training.optimizer))
    outcome.warned = [str(one.message) for one in caught if one.category is CockpitWarning]
    others = [str(one) for one in caught if one.category is not CockpitWarning]
    assert not others, others
    return outcome


def differences(plain: Outcome, watched: Outcome) -> list[str]:
    """Return where two trainings differ first: the step, and what of it."""
    if plain.errors != watched.errors:
        return [f"errors {plain.errors} and {watched.errors}"]
    for step, (one, other) in enumerate(zip(plain.steps, watched.steps, strict=True)):
        if one != other:
            names = [name for name in one.keys() | other.keys() if one.get(name) != other.get(name)]
            return [f"step {step}: {name}" for name in sorted(names)]
    return []


# -- memory ---------------------------------------------------------------------------------------


class Sentinel:
    """Lives in a hook on a tensor, and so for as long as the graph does."""


def graphs(training: Training) -> list[weakref.ref[Sentinel]]:
    """Have the graph of every forward pass from now on hold something, and return where it is noted."""
    seen: list[weakref.ref[Sentinel]] = []

    def mark(module: nn.Module, args: Any, output: Tensor) -> None:
        if output.requires_grad:
            sentinel = Sentinel()
            seen.append(weakref.ref(sentinel))
            output.register_hook(lambda grad, sentinel=sentinel: None)

    for module in training.model.modules():
        if not list(module.children()):
            module.register_forward_hook(mark)
    return seen


def tensors() -> int:
    """Return how many tensors there are that the garbage collector knows of."""
    return sum(issubclass(type(one), Tensor) for one in gc.get_objects())


def objects() -> int:
    """Return how many objects there are, but for weak references to what is gone: torch drops those by the hundred."""
    return sum(not isinstance(one, weakref.ref) or one() is not None for one in gc.get_objects())


def resident_mib() -> float:
    """Return the memory that this process has, in MiB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def memory(steps: int) -> dict[str, dict[str, float]]:
    """Return how memory grows in the second half of so many tracked steps, by the name of the cockpit.

    These are the growths of resident memory in MiB, of the number of tensors, and of the objects for each step.
    """
    warnings.simplefilter("ignore", CockpitWarning)
    found = {}
    for name in ("full", "doctor"):
        settings = every("full" if name == "full" else "health")
        if name == "doctor":
            settings |= {"doctor": True, "on_finding": "log"}
        training, seen = Training("mlp", settings), []
        assert training.watch is not None
        with closing(training.watch):
            for step in range(steps):
                training.once()
                # The first readings load what reading needs; the last ones are of steps that are alike, both
                # with gradients that were set to zero before.
                if step in (0, 1, steps // 2 - 1, steps - 1):
                    training.watch.run().close()  # what waits is written before that
                    gc.collect()
                    seen.append((resident_mib(), tensors(), objects()))
                if step % 100 == 0:
                    print(f"    {name}: {step:,} of {steps:,} steps", file=sys.stderr, flush=True)
        (mib, count, held), last = seen[-2:]
        found[name] = {
            "mib": round(last[0] - mib, 2),
            "tensors": last[1] - count,
            "objects_a_step": round((last[2] - held) / (steps / 2), 3),
        }
    return found


def all_bits(steps: int) -> dict[str, list[str]]:
    """Return for every model and cockpit where the training is another one with it than without."""
    torch.use_deterministic_algorithms(True)
    found = {}
    for kind in MODELS:
        plain = train(kind, None, steps)
        for name, make in WATCHES.items():
            found[f"{kind} {name}"] = differences(plain, train(kind, make(), steps))
            print(f"    {kind}, {name}: {steps:,} steps", file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    what, count = sys.argv[1], int(sys.argv[2])
    print(json.dumps(memory(count) if what == "memory" else all_bits(count)))
