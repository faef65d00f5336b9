"""The snippets of the pages on models, loops and processes run, and what these promise of them is true."""

from __future__ import annotations

import ast
import multiprocessing
import os
import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distributed.processes import PRELOADED
from torch import Tensor, nn
from torch.multiprocessing.spawn import start_processes

import cockpit
from cockpit import BatchGradTransforms, Cockpit, CockpitWarning, open_run
from cockpit.gradients.rules import registry
from cockpit.log import RunFile

DOCS = Path(__file__).parents[1] / "docs"
LOOPS = (DOCS / "any-loop.md").read_text(encoding="utf-8")
MODELS = (DOCS / "any-model.md").read_text(encoding="utf-8")
PROCESSES = (DOCS / "distributed.md").read_text(encoding="utf-8")

PLAIN = "One backward pass"
TROUBLE = "Steps that go wrong"
RESUMED = "Interrupted and resumed"


def python(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, flags=re.S)


def sections(page: str) -> Iterator[tuple[str, str]]:
    """Yield the headings of a page that have snippets, with these."""
    for section in page.split("\n## "):
        code = python(section)
        if code:
            yield section.partition("\n")[0], "\n".join(code)


HEADINGS = [heading for heading, _ in sections(LOOPS)][1:]  # the first one begins the page


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Any]]]:
    """The names that are there after each section, of which all run in one namespace, in their order."""
    names: dict[str, Any] = {"__name__": "page"}
    after = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("page"))
        for heading, code in sections(LOOPS):
            exec(compile(code, "any-loop.md", "exec"), names)
            after[heading] = dict(names)
        yield after


def watches(page: dict[str, dict[str, Any]], heading: str) -> list[Cockpit]:
    """Return the cockpits that a section has made."""
    headings = list(page)
    before = page[headings[headings.index(heading) - 1]].values()
    old = {id(value) for value in before}
    new = page[heading].values()
    return [value for value in new if isinstance(value, Cockpit) and id(value) not in old]


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("heading", [name for name in HEADINGS if name != RESUMED])
def test_every_quantity_has_a_value_at_every_step(heading: str, page: dict[str, Any]) -> None:
    tracked = watches(page, heading)
    assert tracked
    for watch in tracked:
        output = watch.get_output()
        steps = set(range(6)) - ({2} if heading == TROUBLE else set())
        assert set(output) == steps
        names = [quantity.name for quantity in watch.quantities]
        for step, values in output.items():
            last = step == 5  # alpha needs the step after it
            found = {name.partition("-")[0] for name in values}
            assert found == {name for name in names if not (last and name == "Alpha")}
            assert len(values) == len(names) - (last and "Alpha" in names)
        with RunFile(watch.path) as file:
            noted = [event for event in file.events() if event.kind != "basis"]
        assert [(event.step, event.message) for event in noted] == [
            (5, "the run ended before the next step") for name in names if name == "Alpha"
        ]


@pytest.mark.parametrize(
    "heading", ["Accumulated gradients", "Scaled gradients", "A loss with a factor on it already"]
)
def test_the_values_are_those_of_the_first_loop(heading: str, page: dict[str, Any]) -> None:
    (plain,), (other,) = watches(page, PLAIN), watches(page, heading)
    for step, values in plain.get_output().items():
        for name, expected in values.items():
            factor = 0.25 if "factor" in heading and name == "GradNorm" else 1
            close(other.get_output()[step][name], factor * np.asarray(expected))


def test_a_resumed_run_is_one_that_was_not_interrupted(page: dict[str, Any]) -> None:
    (plain,) = watches(page, PLAIN)
    run = page[RESUMED]["run"]
    assert run.steps.tolist() == list(range(6))
    for name, expected in plain.get_output()[4].items():
        found = run.series(name).loc[4]
        close(np.ravel(found), np.ravel(expected))


@pytest.mark.parametrize("told", [True, False])
def test_a_gradient_penalty_has_its_share(told: bool) -> None:
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    x = torch.randn(6, 4, dtype=torch.float64)

    def losses_of(x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        scores = critic(x)
        (slopes,) = torch.autograd.grad(scores.sum(), x, create_graph=True)
        return scores[:, 0] + 10 * (slopes.norm(dim=1) - 1) ** 2

    watch = Cockpit(critic)
    losses = losses_of(x)
    loss = losses.mean()
    info = {"individual_losses": losses} if told else {}
    refused = pytest.warns(CockpitWarning, match=r"weight are not tracked.*individual_losses")
    dense = BatchGradTransforms({"dense": lambda g: g.dense()})
    with nullcontext() if told else refused, watch(0, dense, loss=loss, **info):
        loss.backward()
    for name, parameter in critic.named_parameters():
        rows = [torch.autograd.grad(losses_of(one)[0], parameter)[0] for one in x.split(1)]
        found = getattr(parameter, "grad_batch_transforms", None)
        assert (found is not None) == (told or name.endswith("bias"))
        if found is not None:
            torch.testing.assert_close(found["dense"], torch.stack(rows), rtol=1e-9, atol=1e-12)


def test_curvature_is_that_of_a_part_and_of_the_ggn(page: dict[str, Any]) -> None:
    (watch,) = watches(page, "Other loops")
    run = watch.run()
    assert run.series("HessMaxEV", "samples").unique().tolist() == [8]
    assert run.series("HessMaxEV-2", "samples").unique().tolist() == [32]
    with RunFile(watch.path) as file:
        bases = {event.subject: event.message for event in file.events()}
    assert bases == {
        "HessMaxEV": "curvature: hessian; source: closure",
        "HessMaxEV-2": "curvature: ggn; source: graph",
    }


def test_the_messages_of_the_table_are_those_of_the_code() -> None:
    table = LOOPS.partition("## What is refused")[2]
    rows = re.findall(r"^\| (.*?) \| (.*?) \|$", table, flags=re.M)
    messages = [message for _, message in rows if message != "the message says"]
    assert len(messages) > 10
    said = "\n".join(texts())
    assert [message for message in messages if message not in said] == []


def texts() -> Iterator[str]:
    """Yield all texts in the package, with 2 in the places of values."""
    for path in Path(cockpit.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            if isinstance(node, ast.JoinedStr):
                parts = [
                    part.value if isinstance(part, ast.Constant) else "2" for part in node.values
                ]
                yield "".join(map(str, parts))


def test_the_script_for_several_processes_runs(tmp_path: Path) -> None:
    multiprocessing.set_forkserver_preload(PRELOADED)
    start_processes(_process, (tmp_path,), nprocs=2, start_method="forkserver")
    run = open_run(tmp_path / "runs" / "ddp.db")
    assert run.steps.tolist() == [0, 1, 2, 3]
    assert set(run.quantities) == {"Loss", "NormTest", "Alpha"}
    assert run.series("Alpha").index.tolist() == [0, 1, 2]


def _process(rank: int, folder: Path) -> None:
    """Run the script as `torchrun` would, but for the address of the first process."""
    torch.set_num_threads(1)
    os.chdir(folder)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # which is there without a network, too
    store = f"file://{folder / 'store'}"
    (code,) = python(PROCESSES)
    started = 'init_process_group("gloo"'
    assert code.count(started) == 1
    code = code.replace(started, f"{started}, {store!r}, rank={rank}, world_size=2")
    exec(compile(code, "distributed.md", "exec"), {"__name__": "__main__"})


# -- any model ------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # of compilers; the events say what the cockpit has to say
def test_snippets_on_models_track_everything() -> None:
    names: dict[str, Any] = {"__name__": "page"}
    exec("import torch\nfrom torch import nn", names)
    snippets = {name: code for name, code in sections(MODELS) if not name.startswith("What does")}
    assert len(snippets) == 3
    for name, code in snippets.items():
        exec(compile(code, "any-model.md", "exec"), names)
        watch = names["watch"]
        assert set(watch.get_output()[0]) == {"NormTest"}, name
        with RunFile(watch.path) as file:
            assert list(file.events()) == [], name


def test_the_table_of_layers_is_that_of_the_rules() -> None:
    table = MODELS.partition("## Which layer is served how")[2].partition("\n## ")[0]
    said = {
        name: how
        for names, how in re.findall(r"^\| (.*?) \| (.*?) \|$", table, flags=re.M)
        for name in re.findall(r"`(\w+)`", names)
    }
    kinds = {
        (kind if isinstance(kind, str) else kind.__name__): entry.how
        for kind, entry in registry._RULES.items()
        if isinstance(kind, str) or kind.__module__.startswith("torch.")  # not those of other tests
    }
    for kind, how in kinds.items():
        found = said.pop(kind.rpartition(".")[2])
        assert found.partition(":")[0] == how, kind
    assert said == {}
