"""Several processes against one on the joined batch, and what happens when they do not do the same.

Two processes are started for almost everything, in whose end one of them vanishes.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distributed import processes
from distributed.faults import FAULTS
from distributed.loops import CASES, Case, everything, joined, micro_batches, model_of
from torch import nn

from cockpit import Cockpit, CockpitWarning
from cockpit.errors import InvalidArgument

TOLERANCE = 1e-6

BY_MODULE = {"ActivationStats", "KroneckerSpectrum", "KroneckerSpectrum-2"}
"""Quantities that know a layer by the samples that pass it, which are all of them in one process."""

FROM_EARLIER = {"HessMaxEV", "HessMaxEV-2", "PreconditionedSharpness", "CriticalSharpness"}
"""Quantities whose search begins with what it found at the step before, and so ends elsewhere within its tolerance."""

UNKNOWN_OPTIMIZER = {
    *("CABS", "PreconditionedSharpness", "CriticalSharpness", "LostUpdates", "AdamStaleness"),
    "UpdateSlopes",  # with the gradient as the optimizer gets it
    "GradNorm",  # which is that of the scaled loss here
}

LEFT_OUT = {"unused": BY_MODULE, "static": FROM_EARLIER, "scaled": UNKNOWN_OPTIMIZER}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[processes.Report]:
    return processes.started(processes.everything, tmp_path_factory.mktemp("processes"))


def close(actual: Any, expected: Any, path: str, rtol: float = TOLERANCE) -> None:
    if isinstance(expected, dict):
        assert set(actual) == set(expected), path
        for key, value in expected.items():
            close(actual[key], value, f"{path}/{key}", rtol)
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected), path
        for one, other in zip(actual, expected, strict=True):
            close(one, other, path, rtol)
    else:
        # Entries of an array that vanish beside the others are known as well as these.
        rounding = 1e-12 + rtol * np.abs(expected).max() if np.ndim(expected) else 1e-12
        np.testing.assert_allclose(actual, expected, rtol, rounding, err_msg=path)


def expected_of(case: Case, left_out: set[str]) -> dict[int, dict[str, Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CockpitWarning)
        output = joined(case)
    return {
        step: {name: value for name, value in values.items() if name not in left_out}
        for step, values in output.items()
    }


@pytest.mark.parametrize("name", CASES)
def test_every_quantity_is_that_of_one_process_on_the_joined_batch(
    name: str, reports: list[processes.Report]
) -> None:
    case, left_out = CASES[name], LEFT_OUT.get(name, set())
    expected = expected_of(case, left_out)
    actual = {
        step: {key: value for key, value in values.items() if key not in left_out}
        for step, values in reports[0][name][0].items()
    }
    order = np.array([i for micro_batch in micro_batches(case) for i in micro_batch])
    for step, values in expected.items():
        outliers = values["PerSampleOutliers"]
        outliers["indices"] = order[np.array(outliers["indices"])]
        if name == "static" and step == 0:  # without curvature at the first step
            values = {key: value for key, value in values.items() if key in actual[step]}
        if name == "scaled" and step == case.steps - 1:  # whose update nobody was there to see
            of_update = "Update", "Shrinkage"
            values = {key: value for key, value in values.items() if not key.startswith(of_update)}
        close(actual[step], values, f"{step}")


def test_the_quantities_compared_are_all_there(reports: list[processes.Report]) -> None:
    tracked = {name for name in CASES for values in reports[0][name][0].values() for name in values}
    values = {n for case in CASES for v in reports[0][case][0].values() for n in v}
    assert tracked >= values
    assert len(values) == len(everything())


@pytest.mark.parametrize("name", CASES)
def test_the_training_is_bit_identical_and_only_the_first_process_writes(
    name: str, reports: list[processes.Report]
) -> None:
    for rank, report in enumerate(reports):
        watched, unwatched = report[f"{name}, parameters"]
        for one, other in zip(watched, unwatched, strict=True):
            assert torch.equal(one, other)
        output, parameters, written = report[name]
        assert parameters == [n for n, _ in model_of(CASES[name])[0].named_parameters()]
        assert written == (rank == 0)
        assert bool(output) == (rank == 0)


def test_curvature_waits_for_the_second_step_of_a_static_graph(
    reports: list[processes.Report],
) -> None:
    output = reports[0]["static"][0]
    assert "HessMaxEV" not in output[0]
    assert "HessMaxEV" in output[1]


def test_what_fails_on_one_process_is_missed_by_all_with_its_reason(
    reports: list[processes.Report],
) -> None:
    output, events = reports[0]["faults"]
    assert all(set(values) == {"NormTest"} for values in output.values())
    assert len(output) == 3
    case = Case("mlp", make=lambda: [*everything()], steps=3)
    expected = expected_of(case, set())
    close([v["NormTest"] for v in output.values()], [v["NormTest"] for v in expected.values()], "")
    for where, fault in FAULTS.items():
        reasons = [message for subject, message in events if subject.startswith(fault.__name__)]
        assert reasons
        where = "in compute" if where == "compute" else where
        assert all(f"failed {where}" in r and r.startswith("rank 1: ") for r in reasons), reasons


def test_only_the_first_process_warns(reports: list[processes.Report]) -> None:
    (warning,) = reports[0]["quietness"]
    assert "Compute was not checked: rank 1: ArithmeticError: failed in compute" in warning
    assert reports[1]["quietness"] == []


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (
            "quantities",
            "The quantities differ between the processes: rank 1 has Loss, rank 0 has Loss, NormTest",
        ),
        (
            "settings",
            r"The settings of Setting .* rank 1 has Setting\(.*number=1\), rank 0 has Setting\(.*=0\)",
        ),
        (
            "schedules",
            "The steps at which GradNorm is due differ .* rank 1 has 1, 3, 5.* rank 0 has 0, 2, 4",
        ),
        (
            "steps",
            "Rank [01] is about to enter step [01], while rank [01] is about to enter step [01]",
        ),
        (
            "extensions",
            "rank 1 has NormTest, x in 1 backward passes, rank 0 has NormTest in 1 backward passes",
        ),
    ],
)
def test_misuse_is_named_on_every_process(
    what: str, message: str, reports: list[processes.Report]
) -> None:
    for report in reports:
        with pytest.raises(RuntimeError, match=message):
            raise RuntimeError(report["misuse"][what])


def test_a_process_that_gets_over_an_error_is_waited_for(reports: list[processes.Report]) -> None:
    heard, steps = reports[0]["interrupted"]
    assert "Rank 1 is at the beginning of step 2, while rank 0 is at the end of" in heard
    assert "Rank 1 failed in step 1: FloatingPointError: a loss of its own. " in heard
    assert steps == [0, 2]
    assert reports[1]["interrupted"] == ("", [])


def test_functions_of_the_users_see_the_joined_batch(reports: list[processes.Report]) -> None:
    model, inputs = model_of(CASES["mlp"])
    x = inputs(6)
    weight = model.get_parameter("0.weight")
    norms = [torch.autograd.grad(model(row).square().sum(), weight)[0].norm() for row in x.split(1)]
    for report in reports:
        close(report["extensions"], torch.stack(norms).tolist(), "")


def test_the_other_processes_have_nothing_to_read(reports: list[processes.Report]) -> None:
    output, _, last = reports[0]["reading"]
    assert set(output[0]) == {"Loss", "train_accuracy"}
    assert last == 0
    output, message, last = reports[1]["reading"]
    assert output == {}
    assert message == "The run file is written by rank 0; ask its cockpit for the run."
    assert last == 0


def test_a_process_that_fails_or_makes_no_cockpit_is_named_to_all_others(tmp_path: Path) -> None:
    first, _, last = processes.started(processes.failing, tmp_path, world=3)
    for report in (first, last):
        assert "FloatingPointError: the loss is not finite" in report["message"]
        assert "Rank 1 failed" in report["message"]
        assert report["seconds"] < 30
    assert "needs Cockpit(model, ...) on every process" in first["alone"]


def test_a_process_that_vanishes_is_named(reports: list[processes.Report]) -> None:
    assert "It is rank 1 that does not answer" in reports[0]["message"]
    assert reports[0]["seconds"] < 30


def test_shards_are_refused_by_name(reports: list[processes.Report]) -> None:
    for report in reports:
        assert "is sharded by torch.distributed.fsdp.fully_shard (FSDP2)" in report["sharding"]
        assert "in DistributedDataParallel: Cockpit(ddp_model, ...)" in report["sharding"]

    class FullyShardedDataParallel(nn.Linear):
        """What the wrapper of that name is known by."""

    with pytest.raises(InvalidArgument, match=r"FullyShardedDataParallel.*DistributedDataParallel"):
        Cockpit(FullyShardedDataParallel(2, 1))
