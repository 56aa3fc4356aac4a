"""AdamW with short moments: close to the exact one, true to its formats, and the same after a resume."""

import copy

import pytest
import torch

from training.config import TrainingConfig
from training.optim import make_optimizer
from training.small_adamw import SmallAdamW, _round


def train(kind, steps=200, seed=3):
    """Least squares with noise: which optimizer gets how far from the solution."""
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(64, 300, generator=generator)
    wanted = data @ torch.randn(300, 40, generator=generator)
    torch.manual_seed(0)
    model = torch.nn.Linear(300, 40)
    config = TrainingConfig(
        optimizer_state=kind, learning_rate=0.02, adam_beta2=0.999, weight_decay=0.01, seed=seed
    )
    optimizer = make_optimizer(model, config)
    for _ in range(steps):
        loss = (model(data) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item(), model, optimizer


def test_first_step_is_exact_and_later_ones_are_close():
    for kind in ("bf16", "8bit"):
        _, exact, _ = train("fp32", 1)
        _, short, _ = train(kind, 1)
        assert torch.allclose(exact.weight, short.weight, atol=1e-7), kind
    start, _, _ = train("fp32", 1)
    exact, _, _ = train("fp32")
    assert exact < 0.01 * start
    assert train("bf16")[0] == pytest.approx(exact, abs=0.003 * start)
    assert train("8bit")[0] == pytest.approx(exact, abs=0.01 * start)


def test_moments_take_the_bytes_that_they_promise():
    for kind, expected in (("bf16", 2 * 2), ("8bit", 2 * (1 + 4 / 150))):
        _, model, optimizer = train(kind, 1)
        state = optimizer.state[model.weight]
        num_bytes = sum(v.numel() * v.element_size() for name, v in state.items() if name != "step")
        # 300 columns are two blocks: 256 and 44.
        assert num_bytes / model.weight.numel() == pytest.approx(expected, rel=0.01), kind
        assert optimizer.state[model.bias]["exp_avg"].dtype == torch.float32


def test_rounding_is_right_on_average_and_exact_where_nothing_is_lost():
    noise = torch.Generator().manual_seed(0)
    for dtype, between in ((torch.bfloat16, 1 + 2**-9), (torch.float8_e4m3fn, 1 + 2**-5)):
        value = torch.full((100_000,), between)
        rounded = _round(value, dtype, noise)
        assert torch.equal(rounded, rounded.to(dtype).float()), "not a value of the format"
        assert len(rounded.unique()) == 2
        assert rounded.mean().item() == pytest.approx(between, rel=2e-4)
        whole = torch.tensor([0.0, 1.5, -2.0])
        assert torch.equal(_round(whole, dtype, noise), whole)


@pytest.mark.parametrize("kind", ["bf16", "8bit"])
def test_an_average_that_decays_slowly_does_not_stand_still(kind):
    parameter = torch.nn.Parameter(torch.zeros(64, 256))
    optimizer = SmallAdamW([{"params": [parameter]}], kind, lr=0.0, betas=(0.9, 0.999), eps=1e-8, seed=0)
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    before = _second_moment(optimizer, parameter)
    parameter.grad = torch.zeros_like(parameter)
    for _ in range(500):
        optimizer.step()
    expected = before * 0.999**500
    assert _second_moment(optimizer, parameter) == pytest.approx(expected, rel=0.1)


def _second_moment(optimizer, parameter):
    from training.small_adamw import _read

    return _read(optimizer.state[parameter], "exp_avg_sq").square().mean().item()


@pytest.mark.parametrize("kind", ["bf16", "8bit"])
def test_a_loaded_state_goes_on_bitwise(kind):
    _, model, optimizer = train(kind, 5)
    other = copy.deepcopy(model)
    again = make_optimizer(other, TrainingConfig(optimizer_state=kind, learning_rate=0.02, seed=3))
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for one, two in ((model, optimizer), (other, again)):
        for parameter in one.parameters():
            parameter.grad = torch.ones_like(parameter)
        two.step()
    assert torch.equal(model.weight, other.weight)
    for name, value in optimizer.state[model.weight].items():
        loaded = again.state[other.weight][name]
        assert loaded.dtype == value.dtype and torch.equal(loaded.float(), value.float()), name
