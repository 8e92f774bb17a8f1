import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cubemesh.frameworks.pytorch.optimizers import ETA, Lars

SETTINGS = {"rate": 2.0, "momentum": 0.9, "decay": 0.01}


def by_the_formula(weight, gradients):
    """Algorithm 1 of You et al. 2017, in NumPy, with the rate outside the momentum."""
    velocity = np.zeros_like(weight)
    for gradient in gradients:
        trust, decay = 1.0, 0.0
        if weight.ndim > 1:
            decay = SETTINGS["decay"]
            own, slope = np.linalg.norm(weight), np.linalg.norm(gradient)
            trust = ETA * own / (slope + decay * own) if own and slope else 1.0
        velocity = SETTINGS["momentum"] * velocity + trust * (gradient + decay * weight)
        weight = weight - SETTINGS["rate"] * velocity
    return weight


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 3, 3), (5,)])
def test_steps_follow_the_formula(shape):
    rng = np.random.default_rng(0)
    weight, gradients = rng.normal(size=shape), rng.normal(size=(3, *shape))
    parameter = torch.nn.Parameter(torch.from_numpy(weight.copy()))
    optimizer = Lars([parameter], **SETTINGS)
    for gradient in gradients:
        parameter.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
    expected = by_the_formula(weight, gradients)
    np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-12)


def test_lars_does_not_adapt_an_array_of_zeros():
    parameter = torch.nn.Parameter(torch.zeros(2, 2, dtype=torch.float64))
    optimizer = Lars([parameter], **SETTINGS)
    parameter.grad = torch.ones(2, 2, dtype=torch.float64)
    optimizer.step()
    np.testing.assert_allclose(parameter.detach().numpy(), -2.0)


def test_lars_without_decay_ignores_the_norm_of_the_gradient():
    moved = []
    for size in (1.0, 1e4):
        parameter = torch.nn.Parameter(torch.full((3, 3), 0.5, dtype=torch.float64))
        optimizer = Lars([parameter], rate=1.0, momentum=0.0, decay=0.0)
        parameter.grad = size * torch.arange(9.0, dtype=torch.float64).reshape(3, 3)
        optimizer.step()
        moved.append(parameter.detach().numpy())
    np.testing.assert_allclose(moved[0], moved[1], rtol=1e-12)


def test_a_parameter_without_a_gradient_is_unchanged():
    parameters = [torch.nn.Parameter(torch.ones(2, 2)) for _ in range(2)]
    parameters[0].grad = torch.ones(2, 2)
    Lars(parameters, **SETTINGS).step()
    assert not torch.equal(parameters[0], torch.ones(2, 2))
    assert torch.equal(parameters[1], torch.ones(2, 2))
