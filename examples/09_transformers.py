"""With the trainer of Transformers: a small language model, and how large a batch it wants.

Run it with ``python examples/09_transformers.py``, where Transformers is installed
(``pip install "torch-cockpit[transformers]"``). It downloads nothing, takes less than a minute, and
writes ``runs/transformers.db`` and a picture beside it; ``--help`` lists the options.
"""

import argparse
import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before Transformers is loaded

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from cockpit import CockpitPlotter, open_run
from cockpit.integrations.transformers import CockpitTrainerMixin
from cockpit.quantities import GradientNoiseScale, GradNorm, Loss, NormTest

WORDS, LENGTH, SAMPLES, BATCH, ACCUMULATE = 32, 16, 1_024, 8, 2


class WatchedTrainer(CockpitTrainerMixin, Trainer):
    """Transformers' trainer with a cockpit."""


def counting(seed: int) -> list[dict[str, torch.Tensor]]:
    """Return sequences that count on in steps of 1, 2 or 3, from anywhere."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(WORDS, (SAMPLES, 1), generator=generator)
    steps = torch.randint(1, 4, (SAMPLES, 1), generator=generator)
    positions = torch.arange(LENGTH)
    ids = (first + steps * positions) % WORDS  # [SAMPLES, LENGTH]
    # Positions for every sample: with one row of them for all, their embedding would have no
    # individual gradients.
    return [{"input_ids": row, "labels": row, "position_ids": positions} for row in ids]


parser = argparse.ArgumentParser(description="The trainer of Transformers with a cockpit.")
parser.add_argument("--epochs", type=int, default=2, help="of training (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("runs"), help="folder (%(default)s)")
options = parser.parse_args()
path = options.out / "transformers.db"

print("How large a batch does a small language model want?")
torch.manual_seed(0)
model = GPT2LMHeadModel(
    GPT2Config(
        vocab_size=WORDS,
        n_positions=LENGTH,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
)
trainer = WatchedTrainer(
    model,
    TrainingArguments(
        output_dir=str(options.out / "transformers"),
        use_cpu=True,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATE,
        learning_rate=3e-3,
        num_train_epochs=options.epochs,
        eval_strategy="epoch",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    ),
    train_dataset=counting(seed=1),
    eval_dataset=counting(seed=2),
    cockpit={
        "quantities": [Loss(), GradNorm(), NormTest(), GradientNoiseScale()],
        "log": path,
    },
)
trainer.train()

run = open_run(path)
loss, evaluated = run.series("Loss"), run.series("valid_loss")
print(f"{len(loss)} steps, loss {loss.iloc[0]:.2f} -> {loss.iloc[-1]:.2f},", end=" ")
print(f"on other sequences {evaluated.iloc[-1]:.2f}")

# The noise scale is the batch size at which noise and gradient weigh the same; single estimates are
# noisy themselves, so the two parts are averaged before they are divided.
parts = run.scalars()
parts = parts[parts["quantity"] == "GradientNoiseScale"].pivot_table(
    index="step", columns="part", values="value"
)
for name, half in (
    ("first", parts.iloc[: len(parts) // 2]),
    ("second", parts.iloc[len(parts) // 2 :]),
):
    scale = half["trace"].mean() / half["squared_norm"].mean()
    print(
        f"In the {name} half, a batch of about {scale:.0f} sequences balances noise and gradient;",
        end=" ",
    )
    print(f"it had {BATCH * ACCUMULATE}.")

CockpitPlotter().plot(run, show_plot=False, save_plot=True, savename="transformers")
print(f"Pictures: {path.with_suffix('.png')}")
