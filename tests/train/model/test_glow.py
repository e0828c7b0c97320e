"""The flow: invertible, with an exact log-determinant, and the same in every form it takes."""

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from mirror_rt.bundle.declared_keys import read_declared
from mirror_rt.errors import ConfigError, ModelError
from mirror_train import TorchEncoder, load_training_data
from mirror_train.compute.processes import Processes
from mirror_train.model.glow import Flow, load_flow, save_flow
from mirror_train.model.glow_blocks import ActNorm, InvertibleLinear
from mirror_train.model.pooling_head import Head
from mirror_train.systems import FlowRecipe
from mirror_train.systems.flow import (
    bits_per_dimension,
    flow_trainer,
    initial_flow,
    likelihood_steps,
)
from mirror_train.training.checkpoint import CheckpointStore
from mirror_train.training.run import Run
from mirror_train.training.run_config import TrainConfig
from rounding import DOUBLE, FLOW_ERROR, of_sums


def vectors(n=300, size=8, *, seed=0):
    """Vectors in a narrow cone, their dimensions correlated and of different scale."""
    generator = np.random.default_rng(seed)
    mixing = generator.normal(size=(size, size)) * np.geomspace(1, 0.1, size) / size**0.5
    return (generator.normal(size=(n, size)) @ mixing + 1).astype(np.float32)


def fit(flow, x, recipe):
    """Fit a flow to fixed vectors, so that there is no encoder; return the losses."""
    alone = Processes(torch.device("cpu"))
    run = Run(TrainConfig(recipe=recipe, out=Path("unused"), seed=0), alone, "fp32")
    model = nn.Module()
    model.get_input_embeddings = lambda: None
    base = SimpleNamespace(model=model, pad_id=0)
    steps = likelihood_steps(flow, x, recipe, run)
    trainer = flow_trainer(run, base, Head(["mean"]), flow, steps, recipe)
    losses = trainer.run(CheckpointStore(Path("unused"), {})).losses
    flow.requires_grad_(False)
    return losses


def shaken(flow, *, seed=0):
    """The same flow with no weight as it began: couplings and scales at work."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in flow.named_parameters():
            # Triangular matrices soon cannot be inverted where all their entries are random.
            scale = 0.05 / flow.size if name.endswith("triangles") else 0.05
            parameter += scale * torch.randn(parameter.shape, generator=generator)
    return flow


def float64_error(flow, x):
    """Bound what two ways through a flow in float64, or there and back, differ by at rows `x`."""
    slopes = torch.func.vmap(torch.func.jacrev(lambda row: flow(row[None])[0]))(x).detach()
    terms = len(flow.blocks) * (4 * flow.size + 2 * flow.hidden_size)
    size = max(float(x.abs().max()), float(flow(x).detach().abs().max()))
    return of_sums(terms, DOUBLE) * float(torch.linalg.cond(slopes).max()) * size


@pytest.fixture(scope="module")
def real(tiny_bert, words_file):
    """Vectors that a real encoder architecture gives real words, float32 [400, 32]."""
    encoder = TorchEncoder.load(tiny_bert, pooling="mean")
    return encoder.encode(load_training_data(words_file).first, normalize_embeddings=False)


@pytest.fixture(scope="module")
def trained(real):
    """A flow fitted to them, for which the loss fell."""
    recipe = FlowRecipe(steps=150, learning_rate=3e-3)
    flow = initial_flow(32, recipe, seed=0, vectors=real)
    losses = fit(flow, real, recipe)
    assert np.mean(losses[-20:]) < np.mean(losses[:20]) - 0.05
    return flow


@pytest.mark.parametrize("size", [8, 32, 384])
def test_the_inverse_of_random_vectors(size):
    x = torch.from_numpy(vectors(size=size))
    flow = shaken(initial_flow(size, FlowRecipe(), seed=1, vectors=x.numpy()), seed=1).eval()
    z = flow(x)
    assert z.dtype == torch.float32
    torch.testing.assert_close(flow.inverse(z), x, atol=FLOW_ERROR, rtol=FLOW_ERROR)
    assert (z - x).abs().max() > 0.5


def test_levels_split_off_half_of_the_dimensions(tmp_path):
    """BERT-flow's code: z = [f3(a); b; c], where f1(x) = [h; c] and f2(h) = [a; b]."""
    x = torch.from_numpy(vectors(size=16))
    recipe = FlowRecipe(blocks=2, levels=3)
    flow = shaken(initial_flow(16, recipe, seed=1, vectors=x.numpy()), seed=1)
    blocks = list(flow.blocks)
    h, c = blocks[1](blocks[0](x)).chunk(2, dim=1)
    a, b = blocks[3](blocks[2](h)).chunk(2, dim=1)
    expected = torch.cat([blocks[5](blocks[4](a)), b, c], dim=1)
    torch.testing.assert_close(flow(x), expected, rtol=0, atol=0)
    exact, rows = flow.double(), x.double()
    error = float64_error(exact, rows)
    torch.testing.assert_close(exact.inverse(exact(rows)), rows, atol=error, rtol=0)
    jacobian = torch.autograd.functional.jacobian(lambda v: exact(v[None])[0], rows[0])
    found = exact.log_determinant()
    torch.testing.assert_close(found, torch.linalg.slogdet(jacobian).logabsdet, atol=error, rtol=0)
    (tmp_path / "flow").mkdir()
    save_flow(flow.float().eval(), tmp_path / "flow")
    torch.testing.assert_close(load_flow(declared(tmp_path / "flow"))(x), flow(x), rtol=0, atol=0)
    with pytest.raises(ConfigError, match="a flow of 3 levels needs vectors of a multiple of 8"):
        Flow(12, levels=3)


@pytest.mark.parametrize("source", ["random", "real"])
def test_every_actnorm_of_a_flow_is_fitted_to_what_reaches_it(source, real):
    x = vectors() if source == "random" else real
    flow = initial_flow(x.shape[1], FlowRecipe(), seed=0, vectors=x)
    seen = []
    for module in flow.modules():
        if isinstance(module, ActNorm):
            module.register_forward_hook(lambda norm, x, y: seen.append((norm, x[0], y)))
    flow(torch.from_numpy(x))
    assert len(seen) == 9  # one a block, and two in each coupling
    for norm, given, y in seen:
        scale, rows = norm.log_scale.detach(), y.detach().double()
        parts = (given.abs() * scale.exp() + norm.bias.abs()).detach()
        error = of_sums(4 + math.ceil(scale.abs().max())) * float(parts.max())
        np.testing.assert_allclose(rows.mean(dim=0), 0, atol=error)
        np.testing.assert_allclose(rows.std(dim=0, correction=0), 1, atol=error)


def test_actnorm_does_not_blow_up_a_dimension_without_signal():
    x = torch.from_numpy(vectors())
    x[:, 3] = 2.5
    y = ActNorm(8).initialise(x)
    assert torch.isfinite(y).all()
    assert y[:, 3].abs().max() < 1e-2


def test_equal_vectors_are_refused():
    with pytest.raises(ModelError, match="every string has the same vector"):
        initial_flow(8, FlowRecipe(), seed=0, vectors=np.ones((5, 8), np.float32))


def test_the_matrix_begins_as_a_rotation_and_its_determinant_is_exact():
    generator = torch.Generator().manual_seed(0)
    linear = InvertibleLinear(16, generator)
    weight = linear.weight()
    torch.testing.assert_close(weight @ weight.T, torch.eye(16).double(), atol=1e-6, rtol=0)
    with torch.no_grad():
        for parameter in linear.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    x = torch.randn(5, 16, generator=generator)
    torch.testing.assert_close(linear(x), (x.double() @ linear.weight().T).float())
    expected = torch.linalg.slogdet(linear.weight()).logabsdet
    torch.testing.assert_close(linear.log_diagonal.double().sum(), expected, atol=1e-5, rtol=0)


def test_the_loss_is_the_change_of_variables_in_float64():
    """-ln p(x) by a density of torch's own and the Jacobian's determinant; bits a dimension."""
    flow = shaken(initial_flow(6, FlowRecipe(), seed=3, vectors=vectors(size=6))).double()
    x = torch.from_numpy(vectors(20, 6, seed=9)).double()
    gaussian = torch.distributions.MultivariateNormal(
        torch.zeros(6).double(), torch.eye(6).double()
    )
    nats = []
    for row in x:
        jacobian = torch.autograd.functional.jacobian(lambda v: flow(v[None])[0], row)
        density = gaussian.log_prob(flow(row[None])[0]) + torch.linalg.slogdet(jacobian).logabsdet
        nats.append(-density)
    expected = torch.stack(nats).mean() / (6 * math.log(2))
    found = bits_per_dimension(flow(x), flow.log_determinant())
    torch.testing.assert_close(found, expected, atol=float64_error(flow, x), rtol=0)


def test_gradients_are_those_of_finite_differences():
    flow = shaken(initial_flow(4, FlowRecipe(hidden_size=3), seed=3, vectors=vectors(size=4)))
    flow, x = flow.double(), torch.from_numpy(vectors(7, 4, seed=9)).double()
    names = [name for name, _ in flow.named_parameters()]

    def loss(*values):
        made = torch.func.functional_call(flow, dict(zip(names, values, strict=True)), (x,))
        logs = [v.sum() for n, v in zip(names, values, strict=True)
                if n.endswith(("log_diagonal", ".norm.log_scale"))]  # fmt: skip
        return bits_per_dimension(made, torch.stack(logs).sum())

    parameters = [p.detach().clone().requires_grad_() for p in flow.parameters()]
    assert torch.autograd.gradcheck(loss, parameters, atol=1e-6)


def test_evaluation_mode_is_the_same_function_in_linear_layers():
    flow = shaken(initial_flow(8, FlowRecipe(), seed=4, vectors=vectors())).double()
    x = torch.from_numpy(vectors(50, seed=8)).double()
    expected, error = flow(x), float64_error(flow, x)
    torch.testing.assert_close(flow.eval()(x), expected, atol=error, rtol=0)
    shaken(flow, seed=1)
    changed = flow.eval()(x)
    assert (changed - expected).abs().max() > 1e-2
    error = float64_error(flow.train(), x)
    torch.testing.assert_close(flow(x), changed, atol=error, rtol=0)
    layers = [m for m in flow.eval().folded.modules() if isinstance(m, nn.Linear)]
    assert len(layers) == 4 * 3


@pytest.mark.parametrize(("size", "options", "message"), [
    (33, {}, "an even number of dimensions, got 33"),
    (0, {}, "an even number of dimensions, got 0"),
    (8, {"blocks": 0}, "at least 1 block and 1 hidden unit, got 0 and 32"),
    (8, {"hidden_size": 0}, "at least 1 block and 1 hidden unit, got 3 and 0"),
])  # fmt: skip
def test_what_no_flow_can_have(size, options, message):
    with pytest.raises(ConfigError, match=message):
        Flow(size, **options)


def test_files(tmp_path, trained, real):
    save_flow(trained, tmp_path)
    again = load_flow(declared(tmp_path))
    x = torch.from_numpy(real)
    torch.testing.assert_close(again(x), trained(x), atol=0, rtol=0)
    assert not any(parameter.requires_grad for parameter in again.parameters())


def declared(folder):
    return read_declared(folder / "config.json", "Flow")


def _no_config(folder):
    (folder / "config.json").unlink()


def _odd(folder):
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace('"in_features": 8', '"in_features": 9'))


def _other_size(folder):
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace('"in_features": 8', '"in_features": 6'))


def _no_weights(folder):
    (folder / "model.safetensors").unlink()


def _change(folder, name, value):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    weights[name][:] = value
    save_file(weights, folder / "model.safetensors")


@pytest.mark.parametrize(("damage", "message"), [
    (_no_config, "is not a Flow module: 'in_features'"),
    (_odd, "is not a Flow module: .* even number of dimensions, got 9"),
    (_other_size, "is not a Flow module: .* size mismatch"),
    (_no_weights, "has no weights"),
    (lambda f: _change(f, "0.norm.bias", math.nan), "0.norm.bias holds NaN"),
    (lambda f: _change(f, "1.linear.permutation", 99), "permutation is not a permutation"),
    (lambda f: _change(f, "1.linear.signs", 0), "signs holds other numbers"),
])  # fmt: skip
def test_damaged_files(tmp_path, damage, message):
    save_flow(Flow(8), tmp_path)
    damage(tmp_path)
    with pytest.raises(ModelError, match=message):
        load_flow(declared(tmp_path))
