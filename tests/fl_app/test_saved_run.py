"""A run's folder gives back its model; whatever is not such a folder is refused."""

import shutil

import numpy as np
import pytest
import torch

from fl_app.data import DataError, load_dataset
from fl_app.errors import ConfigError
from fl_app.saved_run import evaluate_run, load_model, read_settings
from tests.conftest import read_outcome
from tests.fl_app.test_mnist import encode, make_contents, write

SMALL = ("num_rounds=2", "strategy.clipping_norm=1.5")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the folder of a finished run on the digits."""
    return execute(tmp_path_factory.mktemp("digits"), *SMALL)


def execute(folder, *overrides):
    from fl_app.client_app import app as client_app
    from fl_app.config import compose_settings
    from fl_app.engines.in_process import run_in_process
    from fl_app.server_app import app as server_app

    made = compose_settings(list(overrides))
    run_config = {"settings": made.to_json(), "output-dir": str(folder)}
    run_in_process(server_app, client_app, made.num_clients, run_config)
    return folder


@pytest.fixture
def copy(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "copy")


def test_the_settings_are_those_of_the_run(finished):
    made = read_settings(finished)
    assert (made.rounds, made.strategy.clipping_norm, made.num_clients) == (2, 1.5, 10)


def test_the_evaluation_is_that_of_the_run(finished):
    outcome = evaluate_run(finished, [])
    summary = read_outcome(finished).summary
    assert outcome.accuracy == summary["test_accuracy"]
    assert outcome.loss == summary["test_loss"]
    assert outcome.num_records == 360


def test_the_model_can_be_used_in_python(finished):
    model = load_model(str(finished))
    assert not model.training
    test = load_dataset(read_settings(finished).data, 1, 0).test
    # Scaling, centring and projection are the model's own business: it is given raw pixels.
    pixels = np.rint((test.features + 0.3) * 16)
    assert pixels.min() == 0
    assert pixels.max() == 16
    with torch.inference_mode():
        labels = model(torch.from_numpy(pixels.astype(np.float32))).argmax(dim=1).numpy()
    assert np.mean(labels == test.labels) == pytest.approx(evaluate_run(finished, []).accuracy)


def test_other_preparation_of_the_data_changes_the_evaluation(finished):
    assert evaluate_run(finished, ["data.offset=0.9"]) != evaluate_run(finished, [])
    assert evaluate_run(finished, ["data.test_fraction=0.1"]).num_records == 180


def test_data_may_lie_elsewhere_than_in_the_run(tmp_path):
    contents = encode(make_contents(num_train=40, num_test=20))
    write(tmp_path / "there", contents)
    run = execute(
        tmp_path / "run",
        *("data=mnist", f"data.root={tmp_path / 'there'}", "num_clients=2", "num_rounds=1"),
        *("strategy=fedavg", "model=softmax_regression"),
    )
    before = evaluate_run(run, [])
    assert before.num_records == 20
    shutil.move(tmp_path / "there", tmp_path / "here")
    # The records of a process are kept; a new one would have to read them.
    from fl_app import data

    data._load_divided.cache_clear()
    data._load_scaled.cache_clear()
    with pytest.raises(DataError, match=r"there.* is not a folder"):
        evaluate_run(run, [])
    assert evaluate_run(run, [f"data.root={tmp_path / 'here'}"]) == before
    with pytest.raises(ConfigError, match=r"^data: 'digits'; allowed: .*takes \(.*shape"):
        evaluate_run(run, ["data=digits"])


def test_the_data_that_a_model_cannot_take_are_named(finished, tmp_path):
    write(tmp_path, encode(make_contents()))
    with pytest.raises(ConfigError) as caught:
        evaluate_run(finished, ["data=mnist", f"data.root={tmp_path}"])
    assert caught.value.key == "data"
    assert "linear.weight" in str(caught.value)


@pytest.mark.parametrize("use", [load_model, lambda folder: evaluate_run(folder, [])])
class TestRefusals:
    def refuse(self, use, folder) -> str:
        with pytest.raises(ConfigError) as caught:
            use(folder)
        text = str(caught.value)
        assert str(folder) in text
        assert "\n" not in text
        return text

    def test_a_folder_that_is_not_there(self, use, tmp_path):
        text = self.refuse(use, tmp_path / "nothing")
        assert text.endswith("allowed: the folder of a finished run, with config.yaml")

    def test_a_file(self, use, tmp_path):
        (tmp_path / "file").write_text("x")
        self.refuse(use, tmp_path / "file")

    def test_a_folder_without_configuration(self, use, copy):
        (copy / "config.yaml").unlink()
        assert "config.yaml" in self.refuse(use, copy)

    def test_a_run_that_has_not_finished(self, use, copy):
        (copy / "model.safetensors").unlink()
        assert "model.safetensors" in self.refuse(use, copy)

    @pytest.mark.parametrize("content", [b"", b"x", b"\x08" + b"\0" * 30])
    def test_a_damaged_model(self, use, copy, content):
        (copy / "model.safetensors").write_bytes(content)
        assert "model.safetensors" in self.refuse(use, copy)

    def test_a_model_cut_short(self, use, copy):
        whole = (copy / "model.safetensors").read_bytes()
        (copy / "model.safetensors").write_bytes(whole[:-5])
        assert "model.safetensors" in self.refuse(use, copy)

    @pytest.mark.parametrize(
        ("old", "new", "words"),
        [
            ("format_version: 1", "format_version: 2", "format_version: 2; allowed: 1"),
            ("format_version: 1\n", "", "format_version: null; allowed: 1"),
            ("seed: 0", "seed: -1", "seed: -1; allowed: an integer in [0, 2**63)"),
            ("num_rounds:", "num_round:", "num_round: unknown key"),
            ("strategy:", "strategy: [", "config.yaml: "),
        ],
    )
    def test_a_changed_configuration(self, use, copy, old, new, words):
        text = (copy / "config.yaml").read_text()
        assert old in text
        (copy / "config.yaml").write_text(text.replace(old, new, 1))
        assert f"config.yaml: {words}" in self.refuse(use, copy)

    def test_a_configuration_that_is_no_text(self, use, copy):
        (copy / "config.yaml").write_bytes(b"\xff\xfe")
        assert "config.yaml" in self.refuse(use, copy)

    def test_a_configuration_of_another_model(self, use, copy):
        text = (copy / "config.yaml").read_text()
        (copy / "config.yaml").write_text(text.replace("name: softmax_regression", "name: mlp"))
        with pytest.raises(ConfigError, match="hidden"):
            use(copy)
