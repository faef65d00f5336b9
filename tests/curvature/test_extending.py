"""BackPACK's hooks: there while a quantity needs them, and gone afterwards."""

from __future__ import annotations

import pytest
import torch
from backpack import extend
from torch import nn

from cockpit import Cockpit
from cockpit.quantities import HessTrace, KroneckerSpectrum, NormTest, Quantity

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")


def parts() -> tuple[nn.Sequential, nn.CrossEntropyLoss, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    return model, nn.CrossEntropyLoss(), torch.randn(6, 4).double(), torch.randint(3, (6,))


def hooks(*modules: nn.Module) -> int:
    every = [m for module in modules for m in module.modules()]
    marks = sum(hasattr(m, "_backpack_extend") or hasattr(m, "input0") for m in every)
    return marks + sum(len(m._forward_hooks) + len(m._backward_hooks) for m in every)


@pytest.mark.parametrize("quantity", [HessTrace(curvature="diag_h"), KroneckerSpectrum()])
def test_hooks_come_and_go(quantity: Quantity) -> None:
    """With the same values as on a model that the user has extended."""
    outputs = []
    for extended in (False, True):
        model, loss_function, x, y = parts()
        if extended:
            extend(model)
            extend(loss_function)
        before = hooks(model, loss_function)
        watch = Cockpit(model, [quantity], loss_function=loss_function)
        for step in range(2):
            loss = loss_function(model(x), y)
            with watch(step, loss=loss):
                loss.backward()
        assert hooks(model, loss_function) > before
        watch.close()
        assert extended or hooks(model, loss_function) == before == 0
        scalars = watch.run().scalars()
        outputs.append(scalars["value"].to_numpy())
        assert len(scalars) >= 8  # four parameters, two steps
    assert outputs[0] == pytest.approx(outputs[1], rel=1e-12)


def test_no_hooks_without_need() -> None:
    model, loss_function, _, _ = parts()
    watch = Cockpit(model, [NormTest(), HessTrace()], loss_function=loss_function)
    assert hooks(loss_function) == 0
    assert not any(hasattr(m, "_backpack_extend") for m in model.modules())
    watch.add(HessTrace(curvature="diag_h"))
    assert hooks(loss_function) > 0
    watch.close()
    assert hooks(model, loss_function) == 0


def test_what_the_user_has_extended_stays_so() -> None:
    model, loss_function, _, _ = parts()
    extend(model)
    before = hooks(model)
    Cockpit(model, [HessTrace(curvature="diag_h")], loss_function=loss_function).close()
    assert hooks(model) == before > 0
    assert hooks(loss_function) == 0


def test_a_loss_function_that_is_no_module() -> None:
    model, *_ = parts()
    with pytest.raises(TypeError, match=r"loss_function must be a torch\.nn\.Module such as"):
        Cockpit(model, loss_function=torch.nn.functional.cross_entropy)


def test_modules_that_work_in_place_are_refused_by_name() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(inplace=True), nn.Linear(3, 2))
    loss_function = nn.CrossEntropyLoss()
    with pytest.raises(ValueError, match=r"1 is a ReLU with inplace=True.*1\.inplace = False"):
        Cockpit(model, [HessTrace(curvature="diag_h")], loss_function=loss_function)
    assert hooks(model, loss_function) == 0
