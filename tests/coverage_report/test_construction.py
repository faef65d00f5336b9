"""What the cockpit notes of the report when it is made, and that `strict` refuses gaps."""

from __future__ import annotations

import warnings

import pytest
import torch
from coverage_report.networks import Blocks, Phase, random
from torch import nn

import cockpit
from cockpit import Cockpit, CockpitError, CockpitWarning
from cockpit.errors import InvalidArgument


def events(watch: Cockpit):
    events = watch.run().events()
    return events[events["kind"] == "not-tracked"]


def test_the_run_file_has_the_report():
    model = Blocks()
    with Cockpit(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)) as watch:
        kept = watch.run().settings["coverage"]
    report = cockpit.inspect(model)
    assert kept == report.record()
    assert (kept["trained"], kept["tracked"]) == (13, 13)
    assert sum(kept["elements"].values()) == sum(p.numel() for p in model.parameters())
    assert kept["gaps"] == {}
    assert any("shared with head.weight" in note for note in kept["notes"])
    assert events(watch).empty


def test_bare_parameters_have_no_report():
    with Cockpit(nn.Linear(3, 2).parameters()) as watch:
        assert watch.run().settings["coverage"] is None


def test_a_gap_is_warned_of_and_noted_before_the_first_step():
    with pytest.warns(
        CockpitWarning, match="gradients of filter.weight will not be tracked: it is compl"
    ):
        watch = Cockpit(Phase())
    noted = events(watch)
    assert noted["subject"].tolist() == ["filter.weight"]
    assert noted["step"].isna().all()
    assert "view_as_complex" in noted["message"].item()
    assert list(watch.run().settings["coverage"]["gaps"]) == ["filter.weight"]
    watch.close()


def test_strict_refuses_gaps_by_name_before_a_run_file_is_there(tmp_path):
    model = nn.Sequential(*(Phase() for _ in range(3)), nn.Linear(3, 2).double())
    with pytest.raises(CockpitError) as raised:
        Cockpit(model, strict=True, log=tmp_path / "run.db")
    text = str(raised.value)
    assert "3 of 11 parameters of Sequential cannot be tracked:" in text
    assert "- 0-2.filter.weight: it is complex" in text
    assert "Way out: keep its real and imaginary parts" in text
    assert not list(tmp_path.iterdir())


def test_strict_says_nothing_where_all_is_tracked():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Cockpit(Blocks(), strict=True).close()


def test_lazy_parameters_and_scripted_models_are_refused_always():
    lazy = nn.Sequential(nn.LazyLinear(3), nn.LazyLinear(2))
    with pytest.raises(
        InvalidArgument, match=r"do not exist yet: 0-1\.weight, 0-1\.bias.*run one first"
    ):
        Cockpit(lazy)
    lazy(torch.ones(2, 4))
    Cockpit(lazy).close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(nn.Linear(3, 2))
    with pytest.raises(InvalidArgument, match=r"takes no hooks.*the module it was scripted from"):
        Cockpit(scripted)


def test_a_scripted_part_is_left_out_and_the_rest_tracked():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(nn.Linear(3, 3).double())
    model = nn.Sequential(scripted, nn.Linear(3, 2).double())
    with pytest.warns(CockpitWarning, match=r"gradients of 0\.(weight|bias) will not be tracked"):
        watch = Cockpit(model, [cockpit.quantities.NormTest()])
    loss = model(random(4, 3)).square().mean()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CockpitWarning)
        with watch(0, loss=loss):
            loss.backward()
    assert watch.get_output()[0]["NormTest"] is not None
    watch.close()
