"""What is forwarded to experiment trackers is read back from what they have stored."""

import json
import struct
import threading
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from cockpit import Cockpit, CockpitWarning, open_run, quantities
from cockpit.errors import InvalidArgument, InvalidType
from cockpit.forwarding import Tracker
from cockpit.log import RunFile
from cockpit.quantities import Quantity

STEPS = 4

pytestmark = pytest.mark.filterwarnings("ignore:Step 0. Unlucky:cockpit.CockpitWarning")


class Noted:
    """A tracker that keeps what it gets."""

    def __init__(self):
        self.numbers, self.histograms, self.events, self.closed = {}, {}, [], 0

    def scalars(self, step, values):
        self.numbers.setdefault(step, {}).update(values)

    def histogram(self, step, name, counts, edges):
        self.histograms[step, name] = counts, edges

    def event(self, step, kind, subject, message):
        self.events.append((step, kind, subject))

    def close(self):
        self.closed += 1


@dataclass(frozen=True)
class Unlucky(Quantity):
    """A quantity that fails in every step."""

    def compute(self, step):
        raise ArithmeticError("no luck")


def train(path, tracker, steps=STEPS):
    """Train, forward, and return the run."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tracked = [
        quantities.Loss(),
        quantities.GradNorm(),
        quantities.Alpha(),
        quantities.GradHist1d(),
        quantities.GradHist2d(),
        Unlucky(),
    ]
    watch = Cockpit(model, tracked, optimizer=optimizer, log=path, trackers=[tracker])
    for step in range(steps):
        optimizer.zero_grad()
        x, y = torch.randn(6, 4), torch.randint(3, (6,))
        losses = nn.functional.cross_entropy(model(x), y, reduction="none")
        loss = losses.mean()
        with watch(step, loss=loss, individual_losses=losses):
            loss.backward()
        optimizer.step()
        watch.log(step, train_loss=loss.item())
    watch.close()
    return open_run(path)


def expected_scalars(run):
    """Return {name: {step: value}} as the trackers should have it."""
    found = {}
    with RunFile(run.path) as file:
        names = {
            one.id: "/".join(filter(None, ("cockpit", one.quantity, one.key, one.parameter)))
            for one in file.series()
            if not one.detail
        }
        for series, step, value in zip(*file.scalars(), strict=True):
            if series in names:
                found.setdefault(names[series], {})[int(step)] = float(value)
    return found


def expected_histograms(run):
    """Return {name: {step: (counts, edges)}} of the one-dimensional histograms."""
    series = {part: run.series("GradHist1d", part) for part in ("hist", "edges")}
    of_steps = {
        step: (series["hist"].loc[step], series["edges"].loc[step]) for step in series["hist"].index
    }
    return {"cockpit/GradHist1d": of_steps}


def assert_equal(actual, expected):
    assert actual.keys() == expected.keys()
    for name, of_steps in expected.items():
        assert actual[name] == pytest.approx(of_steps, rel=1e-6, nan_ok=True), name


def test_everything_but_details_is_forwarded(tmp_path):
    tracker = Noted()
    run = train(tmp_path / "run.db", tracker)
    by_name = {}
    for step, values in tracker.numbers.items():
        for name, value in values.items():
            by_name.setdefault(name, {})[step] = value
    expected = expected_scalars(run)
    assert {"cockpit/Alpha", "cockpit/GradNorm/0.weight", "cockpit/train_loss"} <= set(expected)
    assert_equal(by_name, expected)
    for step, (counts, edges) in expected_histograms(run)["cockpit/GradHist1d"].items():
        np.testing.assert_array_equal(tracker.histograms[step, "cockpit/GradHist1d"][0], counts)
        np.testing.assert_array_equal(tracker.histograms[step, "cockpit/GradHist1d"][1], edges)
    assert tracker.events == [(0, "not-checked", "Unlucky")]
    assert tracker.closed == 1


def test_a_tracker_that_fails_is_reported_once_and_left_out(tmp_path):
    class Failing(Noted):
        def scalars(self, step, values):
            raise ConnectionError("no network")

    failing = Failing()
    with pytest.warns(CockpitWarning, match="no network") as caught:
        run = train(tmp_path / "run.db", failing)
    assert sum("no network" in str(warning.message) for warning in caught) == 1
    assert failing.closed == 0
    assert list(run.series("Loss").index) == list(range(STEPS))


def test_a_slow_tracker_does_not_hold_up_the_training(tmp_path, monkeypatch):
    monkeypatch.setattr("cockpit.forwarding.LONGEST_QUEUE", 3)
    monkeypatch.setattr("cockpit.forwarding.PATIENCE", 0.1)
    released = threading.Event()

    class Stuck(Noted):
        def scalars(self, step, values):
            released.wait()

    with pytest.warns(CockpitWarning) as caught:
        run = train(tmp_path / "run.db", Stuck(), steps=20)
    released.set()
    messages = " ".join(str(warning.message) for warning in caught)
    assert "slower than the training" in messages
    assert "not taken everything" in messages
    assert list(run.series("Loss").index) == list(range(20))


def test_what_is_no_tracker_is_refused(tmp_path):
    assert isinstance(Noted(), Tracker)
    with pytest.raises(InvalidType, match="trackers holds 3"):
        Cockpit(nn.Linear(1, 1), log=tmp_path / "run.db", trackers=[3])


def test_tensorboard_gets_scalars_and_binned_histograms(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from cockpit.integrations.tensorboard import TensorBoardTracker

    run = train(tmp_path / "run.db", TensorBoardTracker(tmp_path / "tb"))
    stored = EventAccumulator(str(tmp_path / "tb"), size_guidance={"histograms": 0, "scalars": 0})
    stored.Reload()
    actual = {
        name: {event.step: event.value for event in stored.Scalars(name)}
        for name in stored.Tags()["scalars"]
    }
    assert_equal(actual, expected_scalars(run))
    for step, (counts, edges) in expected_histograms(run)["cockpit/GradHist1d"].items():
        (event,) = (e for e in stored.Histograms("cockpit/GradHist1d") if e.step == step)
        value = event.histogram_value
        assert value.num == counts.sum()
        inner = dict(zip(value.bucket_limit, value.bucket, strict=True))
        for limit, count in zip(edges[1:].tolist(), counts, strict=True):
            assert inner.get(limit, 0) == count
    assert any("not-checked" in tag for tag in stored.Tags()["tensors"])


def records_in(log, block=2**15, header=7):
    """Yield the records of a log in LevelDB's format: in blocks, each record in one part or more."""
    position, parts = header, []
    while position + header <= len(log):
        left = block - position % block
        if left < header:
            position += left
            continue
        length, kind = struct.unpack_from("<HB", log, position + 4)
        parts.append(log[position + header : position + header + length])
        position += header + length
        if kind in (1, 4):  # whole, or the last part
            yield b"".join(parts)
            parts = []


def test_wandb_gets_scalars_and_binned_histograms(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    import wandb
    from wandb.proto import wandb_internal_pb2

    from cockpit.integrations.wandb import WandbTracker

    with wandb.init(
        mode="offline", dir=tmp_path, project="p", settings={"x_disable_stats": True}
    ) as live:
        run = train(tmp_path / "run.db", WandbTracker(live))
    wandb.teardown()  # only then is everything on the disk
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    scalars, histograms, alerts = {}, {}, []
    for data in records_in(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "alert":
            alerts.append(record.alert.title)
        if record.WhichOneof("record_type") != "history":
            continue
        items = {
            tuple(item.nested_key) or (item.key,): json.loads(item.value_json)
            for item in record.history.item
        }
        step = items.pop(("cockpit/step",), None)
        for (name, *parts), value in items.items():
            if parts:
                histograms.setdefault(name, {}).setdefault(step, {})[parts[0]] = value
            elif name.startswith("cockpit/"):
                scalars.setdefault(name, {})[step] = value
    assert_equal(scalars, expected_scalars(run))
    for step, (counts, edges) in expected_histograms(run)["cockpit/GradHist1d"].items():
        assert histograms["cockpit/GradHist1d"][step]["values"] == counts.tolist()
        assert histograms["cockpit/GradHist1d"][step]["bins"] == pytest.approx(edges.tolist())
    assert alerts == ["cockpit: not-checked: Unlucky"]


def test_wandb_without_a_run_is_refused():
    from cockpit.integrations.wandb import WandbTracker

    with pytest.raises(InvalidArgument, match=r"wandb\.init"):
        WandbTracker()


def test_mlflow_gets_scalars_and_histograms(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    import mlflow

    from cockpit.integrations.mlflow import MLflowTracker

    uri = (tmp_path / "mlruns").as_uri()
    client = mlflow.MlflowClient(uri)
    stored = client.create_run(client.create_experiment("e"))
    tracker = MLflowTracker(stored.info.run_id, tracking_uri=uri)
    run = train(tmp_path / "run.db", tracker)
    names = client.get_run(stored.info.run_id).data.metrics
    actual = {
        name: {m.step: m.value for m in client.get_metric_history(stored.info.run_id, name)}
        for name in names
    }
    assert_equal(actual, expected_scalars(run))
    for step, (counts, edges) in expected_histograms(run)["cockpit/GradHist1d"].items():
        path = client.download_artifacts(
            stored.info.run_id, f"cockpit/GradHist1d/step-{step}.json", str(tmp_path)
        )
        with open(path) as file:
            values = json.load(file)
        assert values == {"counts": counts.tolist(), "edges": edges.tolist()}
    tags = client.get_run(stored.info.run_id).data.tags
    assert tags["cockpit.not-checked.Unlucky"] == "step 0: ArithmeticError: no luck"


def test_mlflow_without_a_run_is_refused():
    from cockpit.integrations.mlflow import MLflowTracker

    with pytest.raises(InvalidArgument, match="start_run"):
        MLflowTracker()


def test_trackio_gets_scalars_and_binned_histograms(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    from cockpit.integrations.trackio import TrackioTracker

    live = trackio.init(project="p", name="r", embed=False)
    run = train(tmp_path / "run.db", TrackioTracker(live))
    live.finish()
    scalars, histograms = {}, {}
    for entry in SQLiteStorage.get_logs("p", "r"):
        for name, value in entry.items():
            if isinstance(value, dict):
                histograms.setdefault(name, {})[entry["step"]] = value
            elif name.startswith("cockpit/"):
                scalars.setdefault(name, {})[entry["step"]] = value
    assert_equal(scalars, expected_scalars(run))
    for step, (counts, edges) in expected_histograms(run)["cockpit/GradHist1d"].items():
        assert histograms["cockpit/GradHist1d"][step]["values"] == counts.tolist()
        assert histograms["cockpit/GradHist1d"][step]["bins"] == pytest.approx(edges.tolist())
