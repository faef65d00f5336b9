"""One transfer to the host for all the results of a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def to_host(tensors: list[Tensor]) -> list[np.ndarray]:
    """Copy tensors to numpy arrays of the same shapes, with one transfer per device.

    The arrays share no memory with the tensors. Types that numpy lacks become float32.
    """
    results: list[Any] = [None] * len(tensors)
    by_device: dict[torch.device, list[int]] = {}
    for position, tensor in enumerate(tensors):
        by_device.setdefault(tensor.device, []).append(position)
    for device, positions in by_device.items():
        if device.type == "cpu":
            for position in positions:
                results[position] = _plain(tensors[position]).numpy().copy()
            continue
        # The largest items come first, so that every array begins at a multiple of its item's size.
        positions.sort(key=lambda position: -tensors[position].element_size())
        plain = [_plain(tensors[position]) for position in positions]
        joined = torch.cat([tensor.reshape(-1).view(torch.uint8) for tensor in plain]).cpu().numpy()
        start = 0
        for position, tensor in zip(positions, plain, strict=True):
            dtype = np.dtype(str(tensor.dtype).removeprefix("torch."))
            stop = start + tensor.numel() * dtype.itemsize
            results[position] = joined[start:stop].view(dtype).reshape(tuple(tensor.shape))
            start = stop
    return results


def _plain(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    if tensor.dtype in (torch.float16, torch.bfloat16):
        tensor = tensor.float()
    return tensor.contiguous()
