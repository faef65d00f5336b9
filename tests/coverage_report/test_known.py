"""What the report says before any data is seen, and how it is shown."""

from __future__ import annotations

import io
import subprocess
import sys
import time
import warnings

import pytest
import torch
from coverage_report.networks import Blocks, Phase, WithFlat, cnn
from torch import nn

import cockpit
from cockpit.coverage.grouping import collapsed, ranges
from cockpit.errors import InvalidArgument, InvalidType


def test_every_parameter_has_one_row_with_what_serves_it():
    model = cnn()
    report = cockpit.inspect(model)
    assert [row.name for row in report.rows] == [name for name, _ in model.named_parameters()]
    assert [row.shape for row in report.rows] == [tuple(p.shape) for p in model.parameters()]
    served = {row.name: (row.layer, row.served_by) for row in report.rows}
    assert served["0.weight"] == ("Conv2d", "closed form")
    assert served["1.weight"] == ("BatchNorm2d", "dense")
    assert served["6.weight"] == ("Linear", "closed form")
    assert report["0.weight"].module == "0"
    assert report.gaps == ()
    assert all(row.seen is None and row.calls is None for row in report.rows)


def test_a_parameter_by_name():
    assert cockpit.inspect(cnn())["6.bias"].elements == 2
    with pytest.raises(KeyError, match=r"Sequential has no parameter '7\.bias'"):
        cockpit.inspect(cnn())["7.bias"]


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x * self.scale


def test_a_layer_without_a_rule_may_cost_a_replay():
    row = cockpit.inspect(Scale())["scale"]
    assert row.served_by == "graph or replay"
    assert row.module == ""
    assert any("the layer runs once more at every watched step" in note for note in row.notes)


def test_frozen_and_empty_parameters_are_no_gaps():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    model.register_parameter("nothing", nn.Parameter(torch.empty(0, 3)))
    report = cockpit.inspect(model)
    assert report["0.weight"].served_by == "frozen"
    assert report["nothing"].served_by == "empty"
    assert [row.name for row in report.tracked] == ["1.weight", "1.bias"]
    assert report.gaps == ()
    assert "2 of 2 trained parameters" in report.summary()
    assert "2 frozen" in report.summary()


def test_shared_parameters_are_named():
    report = cockpit.inspect(Blocks())
    assert report["tokens.weight"].notes[0].startswith("shared with head.weight")
    assert "head.weight" not in {row.name for row in report.rows}


def test_batch_norm_in_training_mode_is_noted_and_in_eval_mode_not():
    model = cnn()
    (note,) = cockpit.inspect(model).notes
    assert "1 layer normalises with the statistics of the batch (1)" in note
    assert cockpit.inspect(model.eval()).notes == ()


def test_parameters_in_no_optimizer_and_in_two():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    optimizers = [
        torch.optim.SGD([*model[0].parameters(), *model[1].parameters()], lr=0.1),
        torch.optim.Adam(model[1].parameters()),
    ]
    report = cockpit.inspect(model, optimizer=optimizers)
    assert report["0.weight"].notes == ()
    assert report["1.weight"].notes == ("2 optimizers have it: its update is the sum of theirs",)
    assert report["2.bias"].notes == ("no optimizer has it, so its update is zero",)
    assert cockpit.inspect(model)["2.bias"].notes == ()


def test_sparse_and_recurrent_layers_are_noted():
    model = nn.ModuleDict({"rows": nn.Embedding(5, 3, sparse=True), "rnn": nn.LSTM(3, 2)})
    report = cockpit.inspect(model)
    assert any("gradient is sparse" in note for note in report["rows.weight"].notes)
    assert any("no second derivative" in note for note in report["rnn.weight_hh_l0"].notes)


def test_a_compiled_model_shows_the_layers_inside():
    report = cockpit.inspect(torch.compile(nn.Linear(3, 2), backend="eager"))
    assert report["_orig_mod.weight"].layer == "Linear"
    assert any("compiled" in note for note in report.notes)


def test_parameters_on_several_devices_are_noted():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2, device="meta"))
    assert cockpit.inspect(model).notes == ("parameters are on several devices: cpu, meta",)


# -- gaps -----------------------------------------------------------------------------------------


def test_a_lazy_parameter_has_no_shape_yet():
    report = cockpit.inspect(nn.Sequential(nn.Linear(3, 2), nn.LazyLinear(4)))
    (weight, bias) = report.gaps
    assert (weight.name, weight.shape, weight.elements) == ("1.weight", None, 0)
    assert bias.gap is not None
    assert "not known before the first forward pass" in bias.gap
    assert bias.way_out is not None
    assert "run one first" in bias.way_out
    assert "unknown" in str(report)


def test_a_complex_parameter_is_a_gap_with_a_way_out():
    report = cockpit.inspect(Phase())
    (gap,) = report.gaps
    assert gap.name == "filter.weight"
    assert gap.gap is not None
    assert "it is complex" in gap.gap
    assert gap.way_out is not None
    assert "view_as_complex" in gap.way_out


def test_a_sharded_parameter_is_a_gap():
    (gap,) = cockpit.inspect(WithFlat()).gaps
    assert gap.name == "linear.weight"
    assert gap.gap is not None
    assert "sharded over processes" in gap.gap


def test_a_script_module_is_a_gap():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(nn.Linear(3, 2))
    report = cockpit.inspect(nn.Sequential(scripted, nn.Linear(2, 2)))
    assert [row.name for row in report.gaps] == ["0.weight", "0.bias"]
    assert all("ScriptModule" in row.gap for row in report.gaps)


def test_data_parallel_on_several_devices_is_a_gap():
    model = nn.DataParallel(nn.Linear(3, 2))
    assert cockpit.inspect(model).gaps == ()
    model.device_ids = [0, 1]
    assert {row.name for row in cockpit.inspect(model).gaps} == {"module.weight", "module.bias"}


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: cockpit.inspect([]), InvalidType, r"takes a torch\.nn\.Module, got list"),
        (lambda: cockpit.inspect(cnn(), optimizer="sgd"), InvalidType, "optimizer must be"),
        (
            lambda: cockpit.inspect(nn.LazyLinear(2), torch.ones(2, 3)),
            InvalidArgument,
            "parameters that do not exist yet: weight, bias",
        ),
        (
            lambda: cockpit.inspect(nn.Linear(3, 2).requires_grad_(False), torch.ones(2, 3)),
            InvalidArgument,
            "no parameter that is trained",
        ),
    ],
)
def test_bad_input_is_refused_with_the_way_out(call, error, words):
    with pytest.raises(error, match=words):
        call()


# -- how it is shown ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "joined"),
    [
        (["0.w", "1.w", "2.w"], ["0-2.w"]),
        (["0.w", "2.w", "3.w"], ["0,2-3.w"]),
        ([f"{i}.a.{j}.w" for i in range(3) for j in range(2)], ["0-2.a.0-1.w"]),
        (["0.a.0.w", "0.a.1.w", "1.a.0.w"], ["0.a.0-1.w", "1.a.0.w"]),
        (["weight"], ["weight"]),
        (["layer_0.l1", "layer_0.l2", "layer_1.l1", "layer_1.l2"], ["layer_0-1.l1-2"]),
    ],
)
def test_repeated_blocks_are_joined_where_that_says_nothing_false(names, joined):
    found = collapsed(names)
    assert [name for name, _ in found] == joined
    assert sorted(name for _, members in found for name in members) == sorted(names)


def test_ranges():
    assert ranges([3, 0, 1, 7]) == "0-1,3,7"


def test_blocks_that_differ_stand_alone():
    model = Blocks(4)
    model.layers[2].requires_grad_(False)
    names = [line[0] for line in cockpit.inspect(model).lines()]
    assert "layers.0-1,3.linear.weight" in names
    assert "layers.2.linear.weight" in names
    assert len(cockpit.inspect(model).lines(collapse=False)) == len(list(model.parameters()))


def test_the_table_fits_eighty_columns_and_loses_no_name():
    model = nn.ModuleDict({"a_name_that_takes_more_room_than_there_is" * 2: nn.Linear(3, 2)})
    text = cockpit.inspect(nn.Sequential(model, cnn(), Phase())).table()
    assert max(map(len, text.splitlines())) <= 80
    assert "a_name_that_takes_more_room_than_there_is" in text.replace("\n", "")
    assert "Not tracked" in text
    wide = cockpit.inspect(Blocks()).table(width=120)
    assert max(map(len, wide.splitlines())) > 80


def test_the_summary_counts_elements():
    model = nn.Sequential(nn.Linear(100, 10), nn.LayerNorm(10))
    text = cockpit.inspect(model).summary()
    assert text.startswith("4 of 4 trained parameters are tracked, 98.1 % of 1.03 k elements")
    assert "all of 22 elements" in cockpit.inspect(nn.Linear(10, 2)).summary()
    assert text.endswith("Not checked on data.")


def test_shown_in_a_notebook_and_by_rich():
    rich = pytest.importorskip("rich.console")
    report = cockpit.inspect(nn.Sequential(Blocks(), Phase()))
    page = report._repr_html_()
    console = rich.Console(width=100, record=True, file=io.StringIO())
    console.print(report)
    for shown in (page, console.export_text(), str(report)):
        assert "0.layers.0-2.linear.weight" in shown
        assert "view_as_complex" in shown
    assert repr(report) == f"<Coverage of Sequential: {report.summary()}>"


def test_names_are_escaped_in_html():
    model = nn.Module()
    model.register_parameter("<b>", nn.Parameter(torch.ones(2)))
    assert "<td>&lt;b&gt;</td>" in cockpit.inspect(model)._repr_html_()


def test_as_a_frame():
    report = cockpit.inspect(cnn())
    frame = report.frame()
    assert frame["name"].tolist() == [row.name for row in report.rows]
    assert frame.loc[0, "shape"] == (4, 2, 3, 3)


def test_nothing_is_printed_and_pandas_is_not_loaded():
    code = (
        "import sys, cockpit; from torch import nn; cockpit.inspect(nn.Linear(2, 2));"
        "assert not {'pandas', 'rich', 'matplotlib'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""


def test_it_is_cheap():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(150)))
    cockpit.inspect(model)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        cockpit.inspect(model)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.05
