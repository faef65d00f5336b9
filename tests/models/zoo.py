"""Real models, unmodified, in small sizes: classes of torchvision and of transformers, and plain modules of torch.

Every entry says how a mini-batch is drawn, how the model is called, and what the losses of the samples are as a
function of the model's output. Weights are random; nothing is downloaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import transformers
from torchvision import models as vision
from torchvision.models.convnext import CNBlockConfig

Batch = dict[str, Tensor]
Called = tuple[Tensor | None, Tensor]
"""The loss, where the model computes it, and the output that the loss is a function of."""


@dataclass(frozen=True)
class Specimen:
    """A model with its data and loss.

    Args:
        model: The model, in the mode in which it is trained.
        draw: Draws a mini-batch from the global random state.
        call: Calls the model.
        losses: From the output and the mini-batch to ℓ_i, N × the sample's share in the loss, `[N]`.
        batch_size: N.
        coupled: Whether the loss of a sample depends on the others.
        tolerance: Relative error of what is computed from individual gradients. Models that compute
            in single precision inside, whatever the precision of their weights, have more than others.
        smooth: Whether PyTorch can differentiate the model twice.
        learning_rate: Of Adam.
        steps: Number of training steps.
        products: Number of products with the Hessian that an eigenvalue is computed from.
        draws: Number of draws that the mean of a sampled curvature is computed from.
    """

    model: nn.Module
    draw: Callable[[], Batch]
    call: Callable[[nn.Module, Batch], Called]
    losses: Callable[[Tensor, Batch], Tensor]
    batch_size: int = 4
    coupled: bool = False
    tolerance: float = 1e-6
    smooth: bool = True
    learning_rate: float = 1e-2
    steps: int = 3
    products: int = 40
    draws: int = 24


# -- classification of images and vectors ---------------------------------------------------------


def _of_inputs(model: nn.Module, batch: Batch) -> Called:
    return None, model(batch["x"])


def _cross_entropy(z: Tensor, batch: Batch) -> Tensor:
    return F.cross_entropy(z, batch["y"], reduction="none")


def classifier(
    model: nn.Module, shape: tuple[int, ...], *, classes: int = 10, n: int = 4, **more: Any
) -> Specimen:
    """A model from inputs of a shape to the logits of classes."""

    def draw() -> Batch:
        return {"x": torch.randn(n, *shape).double(), "y": torch.randint(classes, (n,))}

    return Specimen(model.double(), draw, _of_inputs, _cross_entropy, n, **more)


def mlp() -> Specimen:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 3))
    return classifier(model, (6,), classes=3, n=5)


def cnn() -> Specimen:
    """Three convolutions and three dense layers, as 3c3d."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, padding=1),
        nn.Conv2d(4, 5, 3),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, padding=1),
        nn.Conv2d(5, 6, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, padding=1),
        nn.Flatten(),
        nn.Linear(24, 16),
        nn.ReLU(),
        nn.Linear(16, 8),
        nn.ReLU(),
        nn.Linear(8, 10),
    )
    return classifier(model, (3, 16, 16))


def _normalised() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 6, 3, stride=2),
        nn.BatchNorm2d(6),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(24, 8),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.Linear(8, 5),
    )


def batch_norm_training() -> Specimen:
    return classifier(_normalised(), (3, 8, 8), classes=5, coupled=True)


def batch_norm_evaluation() -> Specimen:
    model = _normalised()
    with torch.no_grad():  # running statistics that differ from those of the start
        model(torch.randn(16, 3, 8, 8) * 2 + 1)
    return classifier(model.eval(), (3, 8, 8), classes=5)


def mobilenet() -> Specimen:
    model = vision.mobilenet_v3_small(num_classes=10, width_mult=0.1, dropout=0.0).eval()
    return classifier(model, (3, 32, 32), n=3, smooth=False, steps=2, products=15, draws=8)


def mobilenet_training() -> Specimen:
    model = vision.mobilenet_v3_small(num_classes=10, width_mult=0.1)
    return classifier(model, (3, 64, 64), smooth=False, coupled=True, steps=2, products=15)


def convnext() -> Specimen:
    setting = [CNBlockConfig(8, 16, 1), CNBlockConfig(16, 32, 1), CNBlockConfig(32, None, 2)]
    model = vision.ConvNeXt(setting, num_classes=10).eval()
    return classifier(model, (3, 32, 32), n=3, learning_rate=0.05)


def vision_transformer() -> Specimen:
    model = vision.VisionTransformer(32, 16, 2, 2, 16, 32, num_classes=5)
    nn.init.normal_(model.heads.head.weight, std=0.2)  # the class starts with zeros
    return classifier(model.eval(), (3, 32, 32), classes=5, n=3)


# -- models that compute their own loss -----------------------------------------------------------

VOCABULARY = 11


def _own_loss(model: nn.Module, batch: Batch) -> Called:
    output = model(**batch)
    return output.loss, output.logits


def _token_losses(z: Tensor, labels: Tensor) -> Tensor:
    """N × each sample's share in the mean over all tokens that have a label."""
    losses = F.cross_entropy(z.transpose(1, 2), labels, reduction="none")
    return len(labels) * losses.sum(1) / (labels != -100).sum()


def _next_token_losses(z: Tensor, batch: Batch) -> Tensor:
    return _token_losses(z[:, :-1], batch["labels"][:, 1:])


def _labelled_losses(z: Tensor, batch: Batch) -> Tensor:
    return _token_losses(z, batch["labels"])


def _class_losses(z: Tensor, batch: Batch) -> Tensor:
    return F.cross_entropy(z, batch["labels"], reduction="none")


def _tokens(n: int, length: int) -> Tensor:
    return torch.randint(1, VOCABULARY, (n, length))


def _text() -> Batch:
    x = _tokens(3, 5)
    return {"input_ids": x, "labels": x.clone()}


def _gpt2(**settings: Any) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=8,
        n_embd=12,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
        loss_type="ForCausalLM",
        **settings,
    )
    return transformers.GPT2LMHeadModel(config).double()


IN_SINGLE = 1e-4
"""The causal loss is computed in single precision: it is known to 7 digits, and differences of losses to fewer."""


def gpt2() -> Specimen:
    model = _gpt2(attn_implementation="eager").eval()
    return Specimen(model, _text, _own_loss, _next_token_losses, 3, tolerance=IN_SINGLE)


def gpt2_training() -> Specimen:
    return Specimen(_gpt2().train(), _text, _own_loss, _next_token_losses, 3, tolerance=IN_SINGLE)


def llama() -> Specimen:
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8,
    )
    model = transformers.LlamaForCausalLM(config).double().eval()
    return Specimen(model, _text, _own_loss, _next_token_losses, 3, tolerance=IN_SINGLE)


def bert() -> Specimen:
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
    )

    def draw() -> Batch:
        """Sentences of several lengths, with a label at every token that is masked."""
        x = _tokens(3, 5)
        attended = torch.tensor([5, 4, 3])[:, None] > torch.arange(5)
        masked = (torch.rand(3, 5) < 0.4) | (torch.arange(5) == 1)
        labels = x.where(masked & attended, -100)
        return {"input_ids": x, "attention_mask": attended.long(), "labels": labels}

    model = transformers.BertForMaskedLM(config).double().eval()
    return Specimen(model, draw, _own_loss, _labelled_losses, 3)


def t5() -> Specimen:
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=12,
        d_kv=6,
        d_ff=16,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
    )

    def draw() -> Batch:
        labels = _tokens(3, 4)
        labels[0, 3] = -100
        return {"input_ids": _tokens(3, 5), "labels": labels}

    model = transformers.T5ForConditionalGeneration(config).double().eval()
    return Specimen(model, draw, _own_loss, _labelled_losses, 3, tolerance=1e-5, learning_rate=0.05)


def _images() -> Batch:
    return {"pixel_values": torch.randn(3, 3, 16, 16).double(), "labels": torch.randint(5, (3,))}


def resnet() -> Specimen:
    config = transformers.ResNetConfig(
        embedding_size=4,
        hidden_sizes=[4, 6],
        depths=[1, 2],
        layer_type="basic",
        num_labels=5,
    )
    model = transformers.ResNetForImageClassification(config).double().eval()
    return Specimen(model, _images, _own_loss, _class_losses, 3)


def vit() -> Specimen:
    config = transformers.ViTConfig(
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=16,
        patch_size=8,
        num_labels=5,
    )

    model = transformers.ViTForImageClassification(config).double().eval()
    return Specimen(model, _images, _own_loss, _class_losses, 3)


# -- recurrent, and anything else -----------------------------------------------------------------


class LanguageModel(nn.Module):
    """A recurrent language model as of old: time first, all positions flattened before the head."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.encoder = nn.Embedding(VOCABULARY, 6)
        self.rnn = nn.LSTM(6, 6, num_layers=2)
        self.decoder = nn.Linear(6, VOCABULARY)
        if tied:
            self.decoder.weight = self.encoder.weight

    def forward(self, tokens: Tensor) -> Tensor:
        h, _ = self.rnn(self.encoder(tokens))  # [T, N, width]
        return self.decoder(h.reshape(-1, h.shape[-1]))  # [T·N, vocabulary]


def lstm(tied: bool) -> Specimen:
    def draw() -> Batch:
        return {"x": _tokens(3, 5).T, "y": _tokens(3, 5).T.reshape(-1)}

    def losses(z: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(z, batch["y"], reduction="none").reshape(batch["x"].shape).mean(0)

    return Specimen(LanguageModel(tied).double(), draw, _of_inputs, losses, 3)


class Nested(nn.Module):
    """Containers in containers, inputs in a dict, outputs in a tuple, one module called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stems = nn.ModuleDict({"left": nn.Linear(4, 6), "right": nn.Linear(3, 6)})
        self.stages = nn.ModuleList(
            [nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.GELU()) for _ in range(2)]
        )
        self.shared = nn.Linear(6, 6)
        self.heads = nn.ModuleDict({"classes": nn.Linear(6, 3), "value": nn.Linear(6, 1)})
        self.gates = nn.ParameterList([nn.Parameter(torch.ones(6)) for _ in range(2)])

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        h = self.stems["left"](batch["left"]) + self.stems["right"](batch["right"])
        for stage, gate in zip(self.stages, self.gates, strict=True):
            h = h + gate * stage(torch.tanh(self.shared(h)))
        return self.heads["classes"](h), self.heads["value"](h)


def nested() -> Specimen:
    def draw() -> Batch:
        return {
            "left": torch.randn(4, 4).double(),
            "right": torch.randn(4, 3).double(),
            "classes": torch.randint(3, (4,)),
            "values": torch.randn(4, 1).double(),
        }

    def call(model: nn.Module, batch: Batch) -> Called:
        classes, value = model({"left": batch["left"], "right": batch["right"]})
        loss = F.cross_entropy(classes, batch["classes"]) + F.mse_loss(value, batch["values"])
        return loss, torch.cat([classes, value], dim=1)

    def losses(z: Tensor, batch: Batch) -> Tensor:
        of_classes = F.cross_entropy(z[:, :3], batch["classes"], reduction="none")
        return of_classes + (z[:, 3] - batch["values"][:, 0]) ** 2

    return Specimen(Nested().double(), draw, call, losses)


ZOO: dict[str, Callable[[], Specimen]] = {
    "MLP": mlp,
    "3c3d": cnn,
    "BatchNorm, training": batch_norm_training,
    "BatchNorm, evaluation": batch_norm_evaluation,
    "ResNet": resnet,
    "MobileNetV3, training": mobilenet_training,
    "MobileNetV3": mobilenet,
    "ConvNeXt": convnext,
    "VisionTransformer": vision_transformer,
    "ViT": vit,
    "BERT": bert,
    "T5": t5,
    "GPT-2": gpt2,
    "GPT-2, dropout": gpt2_training,
    "Llama": llama,
    "LSTM": lambda: lstm(tied=False),
    "LSTM, tied": lambda: lstm(tied=True),
    "Nested": nested,
}
"""By the name of the table's column."""


def build(name: str) -> Specimen:
    """Build a specimen, always the same one."""
    torch.manual_seed(0)
    specimen = ZOO[name]()
    with torch.no_grad():  # vectors start as zeros, ones, or almost nothing: give all a part in it
        for parameter in specimen.model.parameters():
            if parameter.numel() == max(parameter.shape):
                parameter += 0.1 * torch.randn_like(parameter)
    return specimen
