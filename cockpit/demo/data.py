"""The images that come with the package."""

from __future__ import annotations

from importlib.resources import files
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Images(NamedTuple):
    """Images with their classes, split for training and testing."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor


def fashion_mnist() -> Images:
    """Return 4000 training and 1000 test images of Fashion-MNIST, ten classes of clothing.

    Images are float32 `[N, 1, 28, 28]`, with mean 0 and standard deviation 1 over the training
    set; classes are int64 `[N]`.

    Source: Xiao, Rasul & Vollgraf (2017), arXiv:1708.07747; a balanced subset.
    """
    with (
        (files("cockpit") / "data" / "fashion_mnist_5k.npz").open("rb") as file,
        np.load(file, allow_pickle=False) as data,
    ):
        x_train, x_test = (torch.from_numpy(data[name]).float() for name in ("x_train", "x_test"))
        y_train, y_test = (torch.from_numpy(data[name]).long() for name in ("y_train", "y_test"))
    mean, std = x_train.mean(), x_train.std()
    return Images(
        ((x_train - mean) / std).unsqueeze(1), y_train, ((x_test - mean) / std).unsqueeze(1), y_test
    )
