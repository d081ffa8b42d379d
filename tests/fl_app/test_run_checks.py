"""What a run refuses before anybody is asked: budgets, and settings that do not go together."""

import pytest

from fl_app.config import compose_settings
from fl_app.errors import ConfigError
from fl_app.run_inputs import check_data
from fl_app.settings import BudgetSettings


@pytest.mark.parametrize(
    ("budget", "key"),
    [
        ({"uplink_bits": 0}, "budget.uplink_bits"),
        ({"uplink_bits": 8, "capacity": 1.0, "seconds": 1.0}, "budget.capacity"),
        ({"capacity": 1.0}, "budget.seconds"),
        ({"seconds": 1.0}, "budget.capacity"),
        ({"capacity": 0.0, "seconds": 1.0}, "budget.capacity"),
        ({"capacity": 1.0, "seconds": float("nan")}, "budget.seconds"),
    ],
)
def test_budgets_that_are_refused(budget: dict, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BudgetSettings(**budget)
    assert str(caught.value).startswith(f"{key}: ")


def test_a_budget_in_bits() -> None:
    assert BudgetSettings().bits is None
    assert BudgetSettings(uplink_bits=10**15).bits == 10**15
    # B = C T of the paper's equation (12), rounded down.
    assert BudgetSettings(capacity=2.5, seconds=3.0).bits == 7


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["budget.uplink_bits=1000"],
            "budget.uplink_bits: 1000; allowed: at least K r beta = 20 rounds * 10 clients * 5232 "
            "bits = 1046400 bits",
        ),
        (
            ["budget.capacity=10", "budget.seconds=2.5"],
            "budget.capacity * budget.seconds: 25; allowed: at least K r beta = 20 rounds",
        ),
        (["strategy.sampling=poisson"], "strategy.sample_rate: null; allowed: a number in (0, 1]"),
        (["strategy=dp_sgd", "strategy.unit=client"], "strategy.unit: 'client'; allowed: record"),
        (
            ["strategy=dp_sgd", "model=user", "model.path=tests.fl_app.own_models:with_batch_norm"],
            "strategy.max_grad_norm: 1.0; allowed: null with this model",
        ),
        (["strategy.max_grad_norm=1"], "strategy.sensitivity: 'one_step'"),
        (["participation=all"], "participation: 'all'; allowed: fixed or poisson"),
        (["num_clients=null"], "num_clients: null; allowed: an integer >= 1"),
        (["strategy.colluding_fraction=1.5"], "strategy.colluding_fraction: 1.5"),
    ],
)
def test_what_a_run_refuses_before_it_starts(words: list[str], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_data(compose_settings(words))
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
