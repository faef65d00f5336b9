import json
import pickle
import sqlite3
from contextlib import closing

import numpy as np
import pandas as pd
import pytest
import torch

from cockpit.errors import InvalidArgument, NotARunFile
from cockpit.findings import SEVERITIES, Finding
from cockpit.forwarding import ForwardingWriter
from cockpit.log import RunFile, RunWriter, SilentWriter
from cockpit.run import open_run

COLUMNS = [
    *("code", "name", "severity", "step", "title", "why", "action", "source"),
    *("subjects", "evidence", "confidence", "instrument"),
]


def finding(**changes):
    settings = {
        "code": "CP101",
        "name": "learning-rate-too-high",
        "severity": "error",
        "step": 7,
        "title": "The learning rate is too high",
        "why": "The loss grows.",
        "action": "Divide it by 3.",
        "source": "Cohen et al. (2021)",
    }
    return Finding(**settings | changes)


FULL = finding(
    subjects=("fc.weight", "τ"),
    evidence={"η": 0.5, "count": 3, "steps": [1, 2], "nested": [[1.5, "a"], []], "none": None},
    confidence=0.25,
    instrument="alpha",
)


@pytest.mark.parametrize("one", [finding(), FULL], ids=["plain", "full"])
def test_a_record_is_strict_json_and_comes_back_as_it_was(one):
    record = one.record()
    assert list(record) == COLUMNS
    text = json.dumps(record, allow_nan=False)
    again = Finding.from_record(json.loads(text))
    assert again == one
    assert hash(again) == hash(one)
    assert pickle.loads(pickle.dumps(one)) == one


def test_values_of_numpy_and_torch_become_plain_ones():
    one = finding(
        step=np.int64(3),
        confidence=np.float32(0.5),
        subjects=["a"],
        evidence={
            "number": np.float64(0.5),
            "flag": np.bool_(True),
            "array": np.arange(4).reshape(2, 2),
            "tensor": torch.tensor([1.5]),
            "tuple": (1, float("inf"), float("-inf"), float("nan")),
        },
    )
    assert one.subjects == ("a",)
    assert one.evidence == {
        "number": 0.5,
        "flag": True,
        "array": [[0, 1], [2, 3]],
        "tensor": [1.5],
        "tuple": [1, "inf", "-inf", "nan"],
    }
    assert [type(one.step), type(one.confidence), type(one.evidence["number"])] == [
        int,
        float,
        float,
    ]


def test_what_is_handed_over_can_be_changed_afterwards():
    evidence = {"steps": [1]}
    one = finding(evidence=evidence)
    evidence["steps"].append(2)
    one.record()["evidence"]["more"] = 1
    assert one.evidence == {"steps": [1]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"code": "101"}, "the code of a finding is '101'. Give one like \"CP101\"."),
        ({"code": None}, "the code of a finding is None"),
        ({"name": "Learning rate"}, "the name of a finding is 'Learning rate'. Give lower-case"),
        ({"severity": "fatal"}, "is 'fatal'. Give one of error, warning, note."),
        ({"severity": []}, r"is \[\]. Give one of"),
        ({"step": 1.5}, "the step of a finding is 1.5. Give an integer."),
        ({"step": "7"}, "the step of a finding is '7'. Give an integer."),
        ({"step": 2**63}, "the step of a finding is 9223372036854775808. Give an integer"),
        ({"title": "two\nlines"}, "Give one line."),
        ({"title": ""}, "Give one line."),
        ({"why": 3}, "the why of a finding is 3. Give a text."),
        ({"subjects": "fc.weight"}, "the subjects of a finding is 'fc.weight'. Give a tuple"),
        ({"subjects": [1]}, "Give a tuple of names."),
        ({"evidence": [1]}, "Give a mapping of names."),
        ({"evidence": {"a": object()}}, "Give numbers, words and lists of these."),
        ({"evidence": {"a": [{}]}}, "Give numbers, words and lists of these."),
        ({"confidence": 1.01}, "Give a number from 0 to 1."),
        ({"confidence": float("nan")}, "Give a number from 0 to 1."),
        ({"confidence": "high"}, "Give a number from 0 to 1."),
        ({"evidence": {"a": "\ud800"}}, "holds what is no character"),
        ({"instrument": 3}, "Give the name of an instrument, or None."),
    ],
)
def test_what_is_no_finding_is_refused(change, message):
    with pytest.raises(InvalidArgument, match=message):
        finding(**change)
    with pytest.raises(InvalidArgument, match=message):
        Finding.from_record(finding().record() | change)


def test_a_record_is_read_whatever_a_newer_release_adds_and_refused_without_what_it_needs():
    assert Finding.from_record(FULL.record() | {"more": 1}) == FULL
    record = finding().record()
    del record["title"]
    with pytest.raises(InvalidArgument, match=r"is incomplete: .*'title'"):
        Finding.from_record(record)
    with pytest.raises(InvalidArgument, match=r"is a list\. Give the mapping"):
        Finding.from_record([])


def test_it_says_itself_in_a_line():
    assert str(FULL) == (
        "CP101 learning-rate-too-high (error, step 7): The learning rate is too high [fc.weight, τ]"
    )
    assert "[" not in str(finding())
    assert SEVERITIES == ("error", "warning", "note")


# --- in the run file


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.db"


def test_findings_are_written_and_read_in_their_order(path):
    with closing(RunWriter(path)) as writer:
        writer.finding(FULL)
        writer.finding(finding(code="CP2", step=3))
        writer.flush()
        assert len(open_run(path).finding_records()) == 2  # while the training goes on
    run = open_run(path)
    assert run.finding_records() == (FULL, finding(code="CP2", step=3))
    frame = run.findings()
    assert list(frame.columns) == COLUMNS
    assert frame["step"].tolist() == [7, 3]
    assert frame["subjects"].tolist() == [("fc.weight", "τ"), ()]
    assert frame["evidence"][0] == FULL.evidence
    assert frame["instrument"].tolist() == ["alpha", ""]


def test_a_run_without_findings_has_the_same_frame(path):
    with closing(RunWriter(path)) as writer:
        writer.finding(FULL)
    filled = open_run(path).findings()
    RunWriter(path).close()
    run = open_run(path)
    assert run.finding_records() == ()
    pd.testing.assert_series_equal(run.findings().dtypes, filled.dtypes)
    assert run.findings().empty


def test_the_json_of_cockpit_1_has_none(tmp_path):
    (tmp_path / "old.json").write_text('{"0": {"Loss": 1.0}}')
    assert open_run(tmp_path / "old.json").findings().empty


def test_a_rewind_drops_what_comes_after_the_mark(path):
    with closing(RunWriter(path)) as writer:
        writer.finding(finding(step=1))
        mark = writer.mark()
        writer.finding(finding(step=2))
    with closing(RunWriter(path, resume=True)) as writer:
        assert writer.rewind(1, mark)
        writer.finding(finding(step=3))
    assert [one.step for one in open_run(path).finding_records()] == [1, 3]


def test_a_mark_of_a_release_without_findings_drops_all(path):
    with closing(RunWriter(path)) as writer:
        mark = writer.mark()
        writer.finding(finding())
        del mark["findings"]
        writer.rewind(0, mark)
    assert open_run(path).finding_records() == ()


def test_the_silent_writer_drops_them():
    SilentWriter(None).finding(finding())


def test_trackers_are_told(path):
    class Tracker:
        def __init__(self):
            self.events = []

        def event(self, *event):
            self.events.append(event)

        def close(self):
            pass

    tracker = Tracker()
    writer = ForwardingWriter(RunWriter(path), [tracker])
    writer.finding(FULL)
    writer.close()
    assert tracker.events == [
        (
            7,
            "error",
            "CP101 learning-rate-too-high",
            "The learning rate is too high. Divide it by 3.",
        )
    ]
    assert open_run(path).finding_records() == (FULL,)


@pytest.mark.parametrize(
    "record",
    [
        "",
        "7",
        "{}",
        '{"code": "<script>"}',
        "[" * 100_000,
        json.dumps(FULL.record() | {"evidence": {"a": {"b": 1}}}),
        json.dumps(FULL.record() | {"confidence": 7}),
    ],
    ids=range(7),
)
def test_what_a_file_claims_is_not_trusted(path, record):
    with closing(RunWriter(path)) as writer:
        writer.finding(FULL)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE findings SET record = ?", (record,))
    with RunFile(path) as file, pytest.raises(NotARunFile, match="is damaged: "):
        file.findings()
