"""Clipped steps against Opacus's optimiser and engine; its accountants against dp-accounting."""

import warnings

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting import pld, rdp
from opacus import PrivacyEngine
from opacus.accountants import PRVAccountant, RDPAccountant
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fl_app.data import DataSettings, load_dataset
from fl_app.local_training import StepSettings
from fl_app.model_arrays import to_arrays
from fl_app.model_settings import ModelSettings
from fl_app.models import build_model
from fl_app.per_example_training import clipped_steps

MODELS = ("softmax_regression", "mlp", "cnn")
SEED = 3


def make_case(name: str):
    records = load_dataset(DataSettings(), 10, 0).partition(0)
    return build_model(ModelSettings(name, hidden=16), records.feature_shape, 10, SEED), records


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("norm", [0.1, 2.0])
@pytest.mark.parametrize("name", MODELS)
def test_the_clipped_sum_is_that_of_opacus_s_optimiser(name, norm):
    model, records = make_case(name)
    arrays = to_arrays(model)
    # With a rate of 1 and a divisor of 1 the model moves by the sum.
    step = StepSettings(1.0, float64=True)
    trained, _ = clipped_steps(
        model, arrays, records, [np.arange(32)], step, max_grad_norm=norm, batch_divisor=1
    )
    wrapped = GradSampleModule(build_model(ModelSettings(name, hidden=16), (1, 8, 8), 10, SEED))
    wrapped.double()
    optimiser = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=1.0),
        noise_multiplier=0.0,
        max_grad_norm=norm,
        expected_batch_size=32,
    )
    logits = wrapped(torch.from_numpy(records.features[:32]).double())
    nn.functional.cross_entropy(logits, torch.from_numpy(records.labels[:32])).backward()
    norms = torch.stack([p.grad_sample.flatten(1).norm(dim=1) for p in wrapped.parameters()])
    lengths = norms.norm(dim=0)
    optimiser.clip_and_accumulate()
    for (key, start), parameter in zip(arrays.items(), wrapped.parameters(), strict=True):
        total = parameter.summed_grad.numpy()
        # Opacus divides by the norm plus 1e-6.
        assert np.abs(start - trained[key] - total).max() < 1e-4 * norm
        assert np.abs(total).max() > 1e-3 * norm
    if norm == 0.1:
        assert bool((lengths > norm).any())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_a_whole_training_is_that_of_opacus_s_engine(name):
    model, records = make_case(name)
    arrays, norm, size, epochs = to_arrays(model), 0.5, 16, 3
    used = torch.from_numpy(records.features[:64]), torch.from_numpy(records.labels[:64])
    batches = epochs * list(np.arange(64).reshape(4, size))
    step = StepSettings(0.4, weight_decay=0.01)
    trained, _ = clipped_steps(
        model, arrays, records, batches, step, max_grad_norm=norm, batch_divisor=size
    )
    other = build_model(ModelSettings(name, hidden=16), (1, 8, 8), 10, SEED)
    engine = PrivacyEngine()
    private, optimiser, loader = engine.make_private(
        module=other,
        optimizer=torch.optim.SGD(other.parameters(), lr=0.4, weight_decay=0.01),
        data_loader=DataLoader(TensorDataset(*used), batch_size=size),
        noise_multiplier=0.0,
        max_grad_norm=norm,
        poisson_sampling=False,
    )
    for _ in range(epochs):
        for features, labels in loader:
            optimiser.zero_grad()
            nn.functional.cross_entropy(private(features), labels).backward()
            optimiser.step()
    theirs = to_arrays(other)
    assert max(np.abs(trained[key] - array).max() for key, array in theirs.items()) < 1e-5
    assert max(np.abs(arrays[key] - array).max() for key, array in theirs.items()) > 1e-2


# q, z, T: the rate of a step's Poisson batch, the noise multiplier, the number of steps.
SETTINGS = [(0.01, 1.0, 1000), (0.05, 1.5, 200), (0.2, 2.0, 50), (0.5, 4.0, 100), (1.0, 5.0, 10)]
DELTA = 1e-5


def epsilon_of(accountant: dp_accounting.PrivacyAccountant, q: float, z: float, t: int) -> float:
    event = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z))
    return float(accountant.compose(event, t).get_epsilon(DELTA))


@pytest.mark.parametrize(("q", "z", "t"), SETTINGS)
def test_opacus_s_accountants_agree_with_dp_accounting(q, z, t):
    opacus = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in (PRVAccountant, RDPAccountant):
            accountant = kind()
            accountant.history = [(z, q, t)]
            opacus[kind] = float(accountant.get_epsilon(DELTA))
    tight = epsilon_of(pld.PLDAccountant(), q, z, t)
    assert opacus[PRVAccountant] == pytest.approx(tight, rel=0.01)
    assert opacus[RDPAccountant] == pytest.approx(
        epsilon_of(rdp.RdpAccountant(), q, z, t), rel=0.01
    )
    assert tight < opacus[RDPAccountant]
    # Half the rate, or a tenth more noise, is another guarantee: 1% tells them apart.
    assert tight != pytest.approx(epsilon_of(pld.PLDAccountant(), q / 2, z, t), rel=0.01)
    assert tight != pytest.approx(epsilon_of(pld.PLDAccountant(), q, 1.1 * z, t), rel=0.01)
