"""Recurrent layers and cells: products with one position per time step.

The recurrence is unrolled once more in plain operations, on the whole batch. The gradients that
arrive at the pre-activations of each step, b_t, then give those of a weight as Σ_t b_t a_tᵀ, with
a_t the layer's input or its last state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from cockpit.errors import Unsupported
from cockpit.gradients.batch import Batch, working_dtype
from cockpit.gradients.handle import Dense, IndividualGradients
from cockpit.gradients.products import Products
from cockpit.gradients.rules.registry import Call, rule_for, served_parameters
from cockpit.gradients.rules.rerun import Rerun, external, unseen

State = tuple[Tensor, ...]
Step = Callable[[Tensor, Tensor, State], State]
"""From the pre-activations by the input and by the last state, `[N, gates·H]`, and that state, to the next one."""


def _plain(activation: Callable[[Tensor], Tensor]) -> Step:
    return lambda by_input, by_state, state: (activation(by_input + by_state),)


def _lstm(by_input: Tensor, by_state: Tensor, state: State) -> State:
    """Return the hidden state before its projection, and the cell state."""
    enter, forget, proposed, leave = (by_input + by_state).chunk(4, dim=1)
    cell = forget.sigmoid() * state[1] + enter.sigmoid() * proposed.tanh()
    return leave.sigmoid() * cell.tanh(), cell


def _gru(by_input: Tensor, by_state: Tensor, state: State) -> State:
    reset_i, update_i, proposed_i = by_input.chunk(3, dim=1)
    reset_h, update_h, proposed_h = by_state.chunk(3, dim=1)
    proposed = (proposed_i + (reset_i + reset_h).sigmoid() * proposed_h).tanh()
    return (torch.lerp(proposed, state[0], (update_i + update_h).sigmoid()),)


STEPS: dict[str, Step] = {
    "RNN_TANH": _plain(torch.tanh),
    "RNN_RELU": _plain(torch.relu),
    "LSTM": _lstm,
    "GRU": _gru,
}


class Use(NamedTuple):
    """One place where a recurrence multiplies with a weight.

    Args:
        weight: Name of the weight.
        bias: Name of the bias that is added, or None.
        inputs: What it multiplies, `[T, N, I]`.
        products: What comes out, with its graph: of all time steps, `[T, N, O]`, or of each one,
            `[N, O]`.
    """

    weight: str
    bias: str | None
    inputs: Tensor
    products: list[Tensor]


class Unrolling:
    """A recurrence in plain operations that keeps what its weights multiply.

    Args:
        module: The layer or cell.
        step: Its step.
        dtype: Precision to compute in.
    """

    def __init__(self, module: nn.Module, step: Step, dtype: torch.dtype) -> None:
        self._module, self._step, self._dtype = module, step, dtype
        self.uses: list[Use] = []

    def _parameter(self, name: str) -> Tensor | None:
        value = getattr(self._module, name, None)
        return None if value is None else value.detach().to(self._dtype)

    def _product(self, value: Tensor, kind: str, suffix: str) -> Tensor:
        weight = self._parameter(f"weight_{kind}{suffix}")
        assert weight is not None
        product = F.linear(value, weight, self._parameter(f"bias_{kind}{suffix}"))
        return product if product.requires_grad else product.requires_grad_()

    def run(
        self, inputs: Tensor, state: State, suffix: str = "", present: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Run over the time steps in the order that they are given in.

        Args:
            inputs: The input, `[T, N, I]`.
            state: The first state, each `[N, H]`.
            suffix: Of the parameters' names.
            present: Which samples have an input at which time step, `[T, N]`; None for all.

        Returns:
            The hidden state after each step, `[T, N, H]`, and the last state.
        """
        by_input = self._product(inputs, "ih", suffix)
        projecting = hasattr(self._module, f"weight_hr{suffix}")
        before, by_state, wide, hidden, after = [], [], [], [], []
        for t, product in enumerate(by_input):
            before.append(state[0])
            by_state.append(self._product(state[0], "hh", suffix))
            following = self._step(product, by_state[-1], state)
            if projecting:
                wide.append(following[0])
                hidden.append(self._product(following[0], "hr", suffix))
                following = (hidden[-1], *following[1:])
            if present is not None:
                here = present[t].unsqueeze(1)
                pairs = zip(following, state, strict=True)
                following = tuple(torch.where(here, new, old) for new, old in pairs)
            state = following
            after.append(state[0])
        self._note("ih", suffix, inputs, [by_input])
        self._note("hh", suffix, torch.stack(before), by_state)
        if projecting:
            self._note("hr", suffix, torch.stack(wide), hidden)
        return torch.stack(after), state

    def _note(self, kind: str, suffix: str, inputs: Tensor, products: list[Tensor]) -> None:
        bias = f"bias_{kind}{suffix}"
        has_bias = self._parameter(bias) is not None
        use = Use(f"weight_{kind}{suffix}", bias if has_bias else None, inputs.detach(), products)
        self.uses.append(use)

    def handles(
        self,
        batch: Batch,
        outputs: Sequence[Tensor],
        grads: Sequence[Tensor | None],
        order: Tensor | None = None,
    ) -> dict[str, IndividualGradients]:
        """Pull gradients back to all products, and return the handles of the parameters.

        Args:
            batch: The batch.
            outputs: What the recurrence yields.
            grads: The gradients that arrived at these.
            order: Where the samples of the batch stand in the recurrence, `[N]`; None for in place.
        """
        arrived = [pair for pair in zip(outputs, grads, strict=True) if pair[1] is not None]
        found = iter(
            torch.autograd.grad(
                [output for output, _ in arrived],
                [product for use in self.uses for product in use.products],
                [grad.detach().to(output.dtype) for output, grad in arrived if grad is not None],
                materialize_grads=True,
            )
        )
        dtype = working_dtype(*outputs)
        handles: dict[str, IndividualGradients] = {}
        for use in self.uses:
            steps = [next(found).reshape(-1, *product.shape[-2:]) for product in use.products]
            a, b = (f.to(dtype).permute(1, 2, 0) for f in (use.inputs, torch.cat(steps)))
            if order is not None:
                a, b = a[order], b[order]  # [N, I, T], [N, O, T]
            b = b * batch.scale
            shape = torch.Size([b.shape[1], a.shape[1]])
            handles[use.weight] = Products(batch, shape, a.unsqueeze(1), b.unsqueeze(1))
            if use.bias is not None:
                handles[use.bias] = Dense(batch, b.sum(2))
        return handles


# -- cells ----------------------------------------------------------------------------------------


def _cell_arguments(
    input: Tensor,  # noqa: A002 - the cell's own name for it
    hx: Tensor | State | None = None,
) -> tuple[Tensor, State | None]:
    """Sort out the arguments of a cell or layer, the state as a tuple."""
    return input, (hx,) if isinstance(hx, Tensor) else hx


@rule_for(nn.RNNCell, nn.LSTMCell, nn.GRUCell, how="closed form, run again")
def recurrent_cell(
    call: Call, grads: tuple[Tensor | None, ...], batch: Batch
) -> dict[str, IndividualGradients]:
    """Serve one time step, `[N, I]`."""
    module = call.module
    assert isinstance(module, nn.RNNCell | nn.LSTMCell | nn.GRUCell)
    x, state = _cell_arguments(*call.args, **call.kwargs)
    dtype = working_dtype(x, module.weight_hh)
    grads = _from_outside(call, grads, dtype)
    if x.dim() == 1:  # one sample, without a batch dimension
        x, grads = x.unsqueeze(0), tuple(g if g is None else g.unsqueeze(0) for g in grads)
        state = state if state is None else tuple(value.unsqueeze(0) for value in state)
    _check_samples(x, 0, batch)
    is_lstm = isinstance(module, nn.LSTMCell)
    if state is None:
        state = (x.new_zeros(batch.size, module.hidden_size),) * (2 if is_lstm else 1)
    unrolling = Unrolling(module, _step_of(module), dtype)
    with torch.enable_grad():
        first = tuple(value.detach().to(dtype) for value in state)
        _, last = unrolling.run(x.detach().to(dtype).unsqueeze(0), first)
    return unrolling.handles(batch, last, grads)


def _step_of(cell: nn.Module) -> Step:
    if isinstance(cell, nn.RNNCell):
        return STEPS[f"RNN_{cell.nonlinearity.upper()}"]
    return STEPS["LSTM" if isinstance(cell, nn.LSTMCell) else "GRU"]


def _from_outside(
    call: Call, grads: tuple[Tensor | None, ...], dtype: torch.dtype
) -> tuple[Tensor | None, ...]:
    """Take off the cell state's gradient what came through the hidden state, if the cell's kernels let that pass."""
    if sum(grad is not None for grad in grads) < 2:
        return grads
    cell = Rerun(call, [True] * len(grads), served_parameters(call.module), dtype)
    with unseen():
        outputs = cell.outputs(cell.leaves, cell.differentiable())
        return tuple(external(outputs, [grad.to(dtype) for grad in grads if grad is not None]))


# -- layers ---------------------------------------------------------------------------------------


@rule_for(nn.RNN, nn.LSTM, nn.GRU, how="closed form, run again", draws=True)
def recurrent(
    call: Call, grads: tuple[Tensor | None, ...], batch: Batch
) -> dict[str, IndividualGradients]:
    """Serve layers in either layout, stacked, in both directions, packed, with projections and dropout."""
    module = call.module
    assert isinstance(module, nn.RNNBase)
    layer = _Layer(call, module, batch)
    with torch.enable_grad():
        outputs = layer.outputs()
    return layer.unrolling.handles(batch, outputs, grads, layer.order)


class _Layer:
    """One call of a recurrent layer, all of it with the time steps first: `[T, N, I]`."""

    def __init__(self, call: Call, module: nn.RNNBase, batch: Batch) -> None:
        self._call, self._module, self._batch = call, module, batch
        given, state = _cell_arguments(*call.args, **call.kwargs)
        self._drops = call.training and module.dropout > 0 and module.num_layers > 1
        self._check_random_state()
        self.order: Tensor | None = None
        self._present: Tensor | None = None
        self._batched = True
        order = None
        if isinstance(given, PackedSequence):
            x, self._present, order, self.order = _unpacked(given)
        else:
            self._batched = given.dim() == 3
            x = given.transpose(0, 1) if module.batch_first and self._batched else given
            x = x if self._batched else x.unsqueeze(1)
        _check_samples(x, 1, batch)
        weight = module.weight_hh_l0
        assert isinstance(weight, Tensor)
        # Random numbers may come out differently in another precision.
        dtype = x.dtype if self._drops else working_dtype(x, weight)
        self._x = x.detach().to(dtype)  # [T, N, I]
        self._first = self._states(state, order)
        self.unrolling = Unrolling(module, STEPS[module.mode], dtype)

    def _check_random_state(self) -> None:
        """Refuse dropout between the layers that cannot be drawn again."""
        if not self._drops:
            return
        conditions = self._call.conditions
        if conditions is not None and conditions.drew and conditions.autocast is None:
            return
        raise Unsupported(
            "its dropout between layers cannot be drawn again, because cuDNN, autocast or the compiler "
            "has drawn it; stack single layers with nn.Dropout between them, or set its dropout to 0"
        )

    def _states(self, given: State | None, order: Tensor | None) -> State:
        """Return the first states of all layers and directions, each `[layers · directions, N, H]`."""
        module = self._module
        if given is None:
            rows = module.num_layers * (2 if module.bidirectional else 1)
            widths = [module.proj_size or module.hidden_size]
            widths += [module.hidden_size] if module.mode == "LSTM" else []
            return tuple(self._x.new_zeros(rows, self._batch.size, width) for width in widths)
        states = [value.detach().to(self._x.dtype) for value in given]
        if not self._batched:
            states = [value.unsqueeze(1) for value in states]
        return tuple(value if order is None else value[:, order] for value in states)

    def outputs(self) -> list[Tensor]:
        """Run again; return the output and the last states, in the layout that the layer returns them in."""
        if not self._drops:
            output, last = self._run()
        else:
            assert self._call.conditions is not None
            with self._call.conditions.restored():
                output, last = self._run()
        if self._present is not None:
            output = output[
                self._present
            ]  # the packed order: time steps, and the samples that are there
        elif not self._batched:
            output, last = output.squeeze(1), [value.squeeze(1) for value in last]
        elif self._module.batch_first:
            output = output.transpose(0, 1)
        if self.order is not None:
            last = [value[:, self.order] for value in last]
        return [output, *last]

    def _run(self) -> tuple[Tensor, list[Tensor]]:
        module, x = self._module, self._x
        directions = ("", "_reverse") if module.bidirectional else ("",)
        last: list[State] = []
        for layer in range(module.num_layers):
            found = []
            for direction in directions:
                first = tuple(value[len(last)] for value in self._first)
                suffix = f"_l{layer}{direction}"
                if direction:
                    present = None if self._present is None else self._present.flip(0)
                    hidden, state = self.unrolling.run(x.flip(0), first, suffix, present)
                    hidden = hidden.flip(0)
                else:
                    hidden, state = self.unrolling.run(x, first, suffix, self._present)
                found.append(hidden)
                last.append(state)
            x = torch.cat(found, dim=2)
            if self._drops and layer < module.num_layers - 1:
                x = self._dropped(x)
        return x, [torch.stack(values) for values in zip(*last, strict=True)]

    def _dropped(self, x: Tensor) -> Tensor:
        p = self._module.dropout
        if self._present is None:
            return F.dropout(x, p)
        # Numbers are drawn for the time steps that are there.
        return torch.zeros_like(x).masked_scatter(
            self._present.unsqueeze(2), F.dropout(x[self._present], p)
        )


def _unpacked(
    packed: PackedSequence,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return padded inputs `[T, N, I]`, which are there `[T, N]`, and the order of the samples there and back."""
    sizes = packed.batch_sizes.to(packed.data.device)
    present = torch.arange(int(packed.batch_sizes[0]), device=sizes.device) < sizes.unsqueeze(1)
    padded = packed.data.new_zeros(*present.shape, packed.data.shape[1])
    padded[present] = packed.data.detach()
    return padded, present, packed.sorted_indices, packed.unsorted_indices


def _check_samples(x: Tensor, dim: int, batch: Batch) -> None:
    if x.shape[dim] != batch.size:
        raise Unsupported(
            f"its input has {x.shape[dim]} sequences or rows in its batch dimension, for {batch.size} "
            "samples; check its batch_first"
        )
