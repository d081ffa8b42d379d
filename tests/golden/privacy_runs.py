"""The runs whose privacy.json is kept as a file for people to read, and to agree with.

``python -m tests.golden.privacy_runs`` writes the files anew; read the difference before you commit
it.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "privacy"
SECRET = ("randomness=secret", "num_rounds=3")
# Three clients of 479 records each: whoever is drawn, the figures are the same.
PARTIAL = (*SECRET, "num_clients=3", "num_sampled_clients=1")
WHOLE_UPDATE = ("strategy.sensitivity=whole_update", "strategy.clipping_norm=0.1")
POISSON = (
    "strategy.neighboring_relation=add_or_remove_one",
    "strategy.sampling=poisson",
    "strategy.sample_rate=0.2",
)
EPOCHS = ("strategy.local_steps=null", "strategy.local_epochs=1")
RUNS: dict[str, tuple[str, ...]] = {
    "default": ("randomness=secret",),
    "default_seeded": (),
    "no_noise": (*SECRET, "strategy=fedavg"),
    "whole_update_secret_cohort": (
        # One round, or how often a client is drawn would differ from run to run.
        *(*PARTIAL, "num_rounds=1", *WHOLE_UPDATE, "strategy.local_steps=4"),
        *("strategy.max_participations=1", "strategy.colluding_fraction=0"),
        *("strategy.target_epsilon=null", "strategy.noise_multiplier=2"),
    ),
    "sums_not_quantised": (
        *(*SECRET, "strategy.quantizer=none", "strategy.num_levels=null"),
        *("strategy.target_epsilon=null", "strategy.noise_multiplier=2"),
    ),
    "poisson_records": (*SECRET, *WHOLE_UPDATE, *POISSON),
    "records_in_epochs": (
        *(*SECRET, *WHOLE_UPDATE, *EPOCHS),
        "strategy.neighboring_relation=add_or_remove_one",
    ),
    "one_step": (
        *(*SECRET, "strategy.local_steps=1", "strategy.batch_size=32"),
        *("strategy.max_grad_norm=1", "strategy.clipping_norm=null"),
    ),
    "dp_sgd": (*SECRET, "strategy=dp_sgd"),
    "client_zeroed_out": (
        *(*SECRET, *WHOLE_UPDATE, "strategy.unit=client"),
        *("strategy.neighboring_relation=zero_out", "strategy.target_epsilon=50"),
    ),
    "trusted_server": (
        *(*SECRET, "strategy=dp_fedavg", "num_clients=20", "num_sampled_clients=4"),
        *("participation=poisson", "strategy.neighboring_relation=zero_out"),
    ),
    "published_noise": (*SECRET, "strategy=dp_fedpaq_paper", "strategy.local_steps=4"),
}


def list_guarantees(name: str) -> list[dict[str, Any]]:
    """Run a configuration and return the rows of its privacy.json."""
    from fl_app.client_app import app as client_app
    from fl_app.config import compose_settings
    from fl_app.engines.in_process import run_in_process
    from fl_app.server_app import app as server_app

    settings = compose_settings(list(RUNS[name]))
    assert settings.num_clients is not None
    with tempfile.TemporaryDirectory() as folder:
        run_config = {"settings": settings.to_json(), "output-dir": folder}
        run_in_process(server_app, client_app, settings.num_clients, run_config)
        content = json.loads((Path(folder) / "privacy.json").read_text())
    rows: list[dict[str, Any]] = content["guarantees"]
    return rows


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, overrides in RUNS.items():
        content = {"overrides": list(overrides), "guarantees": list_guarantees(name)}
        text = json.dumps(content, indent=1, ensure_ascii=False)
        (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
