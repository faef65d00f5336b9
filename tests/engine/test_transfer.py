"""The one transfer of a step's results to the host."""

from __future__ import annotations

import numpy as np
import torch

from cockpit.engine import to_host

VALUES = [
    torch.tensor(1.5),
    torch.arange(6, dtype=torch.int64).reshape(2, 3),
    torch.tensor([True, False]),
    torch.tensor([float("nan"), float("inf")], dtype=torch.float64),
    torch.zeros(0, 3),
    torch.tensor([[1, 2]], dtype=torch.uint8),
    torch.tensor([0.5, 2.0], dtype=torch.bfloat16),
    torch.tensor([0.25], dtype=torch.float16),
    torch.arange(6.0).reshape(2, 3).T,  # not contiguous
]


def test_values_types_and_shapes_stay() -> None:
    for tensor, array in zip(VALUES, to_host(VALUES), strict=True):
        expected = tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
        assert array.shape == tuple(tensor.shape)
        assert array.dtype == expected.numpy().dtype
        np.testing.assert_array_equal(array, expected.numpy())
        assert array.flags.aligned


def test_nothing_is_shared() -> None:
    tensor = torch.ones(3)
    (array,) = to_host([tensor])
    tensor.zero_()
    assert array.tolist() == [1, 1, 1]


def test_nothing_to_do() -> None:
    assert to_host([]) == []
