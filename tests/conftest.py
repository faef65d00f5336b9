"""What all tests have in common."""

import torch

# The networks are tiny: more threads only wait for each other.
torch.set_num_threads(1)
