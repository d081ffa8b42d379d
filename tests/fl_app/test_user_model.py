"""A model by import path: what is taken, what is refused, and how the user is told."""

import sys

import pytest
import torch
from torch import nn

from fl_app.model_settings import ModelSettings
from fl_app.models import build_model
from tests.fl_app import own_models

SHAPE = (1, 8, 8)
MODULE = "tests.fl_app.own_models"


def make(name: str, seed: int = 0, **more) -> nn.Module:
    settings = ModelSettings("user", path=f"{MODULE}:{name}", **more)
    return build_model(settings, SHAPE, 10, seed)


def test_the_user_s_function_is_called_with_shape_and_classes():
    model = make("build")
    assert isinstance(model, own_models.Net)
    assert model(torch.zeros(4, *SHAPE)).shape == (4, 10)
    assert model.training
    assert model.middle.training
    assert make("Holder.build").output.weight.shape == (10, 64)
    assert make("build", dtype="float64").output.weight.dtype == torch.float64


def test_the_trial_on_zeros_leaves_a_model_as_its_function_made_it():
    norm = make("with_batch_norm").middle[1]
    assert int(norm.num_batches_tracked) == 0
    assert torch.equal(norm.running_var, torch.ones(64))


def test_the_seed_decides_and_the_global_generator_is_untouched():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = (make("build", seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(6)
    later = make("build", 0).state_dict()
    for name, value in first.items():
        assert torch.equal(value, again[name])
        assert torch.equal(value, later[name])
        assert not torch.equal(value, other[name])


def test_the_generator_is_restored_after_a_refusal():
    before = torch.get_rng_state()
    for name in ("raises", "frozen", "unseeded"):
        with pytest.raises(ValueError, match=r"model\.path"):
            make(name)
    assert torch.equal(before, torch.get_rng_state())


REFUSED = [
    ("raises", "raises((1, 8, 8), 10) raised RuntimeError: no weights here"),
    ("no_module", "is needed (this returned a value of type str)"),
    ("Net", None),  # a class is as good as a function
    ("no_parameters", "trainable parameters is needed"),
    ("frozen", "trainable parameters is needed"),
    ("too_many_logits", "(3, 10) for 3 records, not (3, 11)"),
    ("no_tensor", "not tuple"),
    ("other_shape", "features of shape (1, 8, 8) is needed; on zeros it raised RuntimeError"),
    ("elsewhere", "on the CPU is needed, not on meta"),
    ("the_same", "a new module is needed each time"),
    ("unseeded", "the same initial values are needed for the same seed"),
    ("no_number", "finite initial values are needed; 1.bias has others"),
    ("raises_in_training", "on zeros in training mode it raised IndexError: no such row"),
    ("pair_in_training", "on zeros in training mode it raised TypeError"),
    ("detached_in_training", "on zeros in training mode it raised RuntimeError: element 0"),
    ("not_callable", "is needed (this is a value of type int)"),
    ("missing", f"a name that {MODULE} has is needed"),
    ("Holder.missing", f"a name that {MODULE} has is needed"),
]


@pytest.mark.parametrize(("name", "message"), REFUSED)
def test_what_is_no_model_is_refused_with_the_reason(name, message):
    if message is None:
        make(name)
        return
    with pytest.raises(ValueError, match=r"^model\.path: ") as caught:
        make(name)
    text = str(caught.value)
    assert text.startswith(f"model.path: '{MODULE}:{name}'; ")
    assert message in text
    assert "\n" not in text


def refuse(path: str) -> str:
    with pytest.raises(ValueError, match=r"^model\.path: ") as caught:
        build_model(ModelSettings("user", path=path), SHAPE, 10, 0)
    return str(caught.value)


def test_a_module_that_is_missing_or_broken_says_which(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    assert "no module nonexistent is installed here" in refuse("nonexistent:thing")
    assert "no module tests.missing is installed here" in refuse("tests.missing.deeper:thing")
    (tmp_path / "broken_model.py").write_text("import nonexistent_library\n")
    text = refuse("broken_model:build")
    assert "importing broken_model raised ModuleNotFoundError: No module named 'nonexist" in text
    (tmp_path / "wrong_model.py").write_text("1 / 0\n")
    assert "importing wrong_model raised ZeroDivisionError" in refuse("wrong_model:build")
    sys.modules.pop("wrong_model", None)


@pytest.mark.parametrize("path", [None, "", "module", "module:", ":name", "a b:c", "a:b:c", "a.:b"])
def test_a_malformed_path_is_refused_at_once(path):
    with pytest.raises(ValueError, match=r"^model\.path: .*; an import path package\.module:name"):
        ModelSettings("user", path=path)


RUN = ("run", "model=user", "num_rounds=1", "num_clients=2")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "model.path: null; an import path"),
        (["model.path=nonexistent:thing"], "no module nonexistent is installed here"),
        ([f"model.path={MODULE}:frozen"], "trainable parameters"),
        ([f"model.path={MODULE}:raises_in_training"], "in training mode it raised IndexError"),
        (
            ["strategy=dp_sgd", f"model.path={MODULE}:embeds"],
            "model that can be trained on any features (on random ones it raised IndexError: index",
        ),
        (["model=cnn_small", "model.path=null"], "model.name: 'cnn_small' cannot take features"),
    ],
)
def test_the_user_is_told_in_one_line_before_anything_runs(fl_app, tmp_path, words, message):
    ended = fl_app(*RUN, *words)
    assert ended.code == 2
    (line,) = ended.errors.splitlines()
    assert line.startswith("fl-app: model.")
    assert message in line
    assert not list(tmp_path.iterdir())


def test_a_run_with_a_model_of_the_user_s_own_is_reproducible(run):
    words = [f"model.path={MODULE}:build", "strategy=fedavg", "num_clients=3", "num_rounds=2"]
    first, again = (run("model=user", *words) for _ in range(2))
    assert first.sha256 == again.sha256
    assert first.summary["num_parameters"] == 650
    assert first.summary["test_accuracy"] > 0.5


def test_a_module_that_draws_while_it_is_imported_changes_nothing(tmp_path, monkeypatch):
    (tmp_path / "drawing_module.py").write_text(
        "import torch\n"
        "torch.randn(3)\n"
        "def build(shape, classes):\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, classes))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = ModelSettings("user", path="drawing_module:build")
    state = torch.get_rng_state()
    first, second = (build_model(settings, (1, 8, 8), 10, 0) for _ in range(2))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(first[1].weight, second[1].weight)


def test_a_model_that_fails_later_is_told_once_and_not_for_each_client(fl_app):
    words = (f"model.path={MODULE}:raises_in_larger_batches", "strategy=fedavg", "num_clients=12")
    ended = fl_app("run", "model=user", "num_rounds=2", *words)
    assert ended.code == 1
    assert ended.errors.splitlines() == [
        "ERROR local training failed",
        "WARNING round 1: dropped {'failed on the client': 12}",
        "fl-app: every client of round 1 answered with an error (failed on the client: 12); "
        "see run.log",
    ]


BATCH_NORM = f"model.path={MODULE}:with_batch_norm"
SMALL = ("model=user", "num_clients=3", "num_rounds=1", "strategy.batch_size=8")
NOISED = [
    [],
    ["strategy.target_epsilon=null", "strategy.noise_multiplier=0.5"],
    ["strategy.noise_at=server", "strategy.sensitivity=whole_update"],
]


@pytest.mark.parametrize("words", NOISED)
def test_noise_on_running_statistics_is_refused(fl_app, words):
    ended = fl_app("run", *SMALL, BATCH_NORM, *words)
    assert ended.code == 2
    (line,) = ended.errors.splitlines()
    assert line.startswith(f"fl-app: model.path: '{MODULE}:with_batch_norm'; allowed: beside noise")
    assert "which get noise as well: middle.1.running_mean (GroupNorm instead" in line


@pytest.mark.parametrize(
    "words",
    [
        [BATCH_NORM, "strategy=fedavg"],
        pytest.param([BATCH_NORM, "strategy=fedpaq"], marks=pytest.mark.slow),
        [f"model.path={MODULE}:with_constants"],
    ],
)
def test_running_statistics_without_noise_and_constants_are_allowed(fl_app, words):
    assert fl_app("run", *SMALL, *words).code == 0


def test_a_test_loss_that_is_not_finite_is_told_once(fl_app):
    words = (f"model.path={MODULE}:diverges_in_evaluation", "strategy=fedavg", "num_rounds=3")
    ended = fl_app("run", *SMALL, *words)
    assert ended.code == 0
    assert ended.errors.splitlines() == ["WARNING round 0: the test loss is not finite (told once)"]
