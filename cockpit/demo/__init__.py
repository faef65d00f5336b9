"""The demonstration: a small network on real images, trained while the cockpit watches."""

from cockpit.demo.data import Images, fashion_mnist
from cockpit.demo.train import Progress, SmallCNN, train

__all__ = ["Images", "Progress", "SmallCNN", "fashion_mnist", "train"]
