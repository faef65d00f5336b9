"""The targets that ``make fuzz`` feeds a million inputs, fed a few thousand."""

import json
import math
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reliability.fuzz import targets
from reliability.fuzz.__main__ import INPUTS

EXAMPLES = {"json_files": 100, "run_files": 60, "edited_run_files": 60}
MANY = 200

numbers = st.one_of(
    st.integers(),
    st.integers(min_value=-(10**40), max_value=10**40),
    st.floats(),
    st.booleans(),
    st.none(),
)
values = st.recursive(
    st.one_of(numbers, st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
quick = settings(
    max_examples=MANY,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def test_make_fuzz_feeds_every_target_and_a_million_inputs_in_all() -> None:
    assert set(INPUTS) == set(targets.TARGETS)
    assert sum(INPUTS.values()) >= 10**6
    for name, target in targets.TARGETS.items():
        for seed in targets.seeds(name):
            target(seed)


@pytest.mark.parametrize("name", targets.TARGETS)
def test_any_bytes(name: str) -> None:
    target, found = targets.TARGETS[name], []
    given_seeds = st.sampled_from(list(targets.seeds(name)))

    @settings(quick, max_examples=EXAMPLES.get(name, MANY))
    @given(st.one_of(st.binary(max_size=300), st.tuples(given_seeds, st.data()).map(_edited)))
    def fed(data: bytes) -> None:
        found.append(len(data))
        target(data)

    fed()
    assert len(found) >= EXAMPLES.get(name, MANY) // 2


def _edited(drawn: tuple[bytes, st.DataObject]) -> bytes:
    """Return what this package writes, with some bytes replaced, put in, or left out."""
    seed, data = drawn
    place = data.draw(st.integers(0, len(seed)))
    length = data.draw(st.integers(0, 8))
    return seed[:place] + data.draw(st.binary(max_size=8)) + seed[place + length :]


@given(values)
@quick
def test_any_json_as_the_record_of_a_finding(value: object) -> None:
    targets.findings(json.dumps(value).encode())


good_record = json.loads(next(iter(targets.seeds("findings"))))


@given(st.sampled_from(sorted(good_record)), values)
@quick
def test_any_json_in_a_field_of_a_finding(field: str, value: object) -> None:
    targets.findings(json.dumps(good_record | {field: value}).encode())


good_query = json.loads(next(iter(targets.seeds("queries"))))


@given(st.sampled_from([*good_query, "width", "density", "style", "known"]), values)
@quick
def test_any_json_in_a_field_of_a_query(field: str, value: object) -> None:
    targets.queries(json.dumps(good_query | {field: value}).encode())


@given(
    st.dictionaries(
        st.integers(0, 10**19).map(str),
        st.dictionaries(st.sampled_from(["Loss", "GradNorm", "Time", "Hist", ""]), values),
        max_size=4,
    )
)
@settings(quick, max_examples=80)
def test_any_json_as_an_output_of_cockpit_1(output: object) -> None:
    targets.json_files(json.dumps(output).encode())


@given(
    st.sampled_from(targets.NAMES),
    st.lists(st.integers(0, 6), max_size=4),
    st.integers(1, 5),
    st.binary(max_size=64),
)
@quick
def test_any_bytes_of_the_right_length_are_a_block(
    dtype: str, shape: list[int], count: int, blob: bytes
) -> None:
    known = targets.DTYPES.get(dtype)
    size = 0 if known is None else math.prod(shape) * known.itemsize * count
    blob = (blob * (size // max(len(blob), 1) + 1))[:size]
    if known is None or len(blob) != size:
        with pytest.raises(ValueError, match=r"dtype|other than these|decompressed"):
            targets.unpack_block(dtype, json.dumps(shape), count, blob)
        return
    found = targets.unpack_block(dtype, json.dumps(shape), count, blob)
    assert (found.shape, found.dtype.name) == ((count, *shape), dtype)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20, unique=True))
@quick
def test_steps_of_any_size_come_back_or_are_refused(numbers: list[int]) -> None:
    steps = sorted(numbers)
    header = struct.pack("<qqi", steps[0], steps[-1], len(steps))
    targets.steps(header + targets.pack_steps(steps))
