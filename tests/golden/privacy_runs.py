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
NISS = (*SECRET, "strategy=niss")
UNIFORM = "strategy.pair_noise=uniform"
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
    "niss": NISS,
    "niss_trust_lists": (
        *(*NISS, "strategy.colluding_fraction=0.3", "strategy.expected_dropouts=1"),
        *("strategy.unit=client", "strategy.target_epsilon=50", "strategy.min_ready=10"),
    ),
    "niss_uniform": (*NISS, UNIFORM, "strategy.min_ready=8"),
    "niss_masks_alone": (
        *(*NISS, UNIFORM, "strategy.target_epsilon=null", "strategy.noise_multiplier=0"),
    ),
    "niss_sparse": (
        *NISS,
        UNIFORM,
        "strategy.graph=sparse",
        "num_clients=20",
        "strategy.batch_size=4",
    ),
    "niss_coalitions": (
        *(*NISS, "num_clients=12", "strategy.min_ready=3", "strategy.batch_size=8"),
        "strategy.coalitions=[{clients: [0, 1, 2, 3, 4], colluding_fraction: 0.2, min_ready: 5}]",
    ),
    "niss_own_targets": (*NISS, "strategy.target_epsilons={0: 2, 3: 12}"),
    "niss_in_turn": (*NISS, "participation=round_robin", "num_sampled_clients=4", "num_rounds=5"),
    "niss_published": (*SECRET, "strategy=niss_paper", "strategy.target_epsilon=8"),
}
# Runs of devices that have identity keys and trust each other.
TRUSTING = ("niss_trust_lists",)


def list_guarantees(name: str) -> list[dict[str, Any]]:
    """Run a configuration and return the rows of its privacy.json."""
    from fl_app.client_app import app as client_app
    from fl_app.config import compose_settings
    from fl_app.engines.in_process import run_in_process
    from fl_app.server_app import app as server_app

    settings = compose_settings(list(RUNS[name]))
    count = settings.num_clients
    assert count is not None
    with tempfile.TemporaryDirectory() as folder:
        named = write_trust(Path(folder), count) if name in TRUSTING else {}

        def answer(message: Any, context: Any) -> Any:
            context.node_config.update(named.get(context.node_config["partition-id"], {}))
            return client_app(message, context)

        run_config = {"settings": settings.to_json(), "output-dir": folder}
        run_in_process(server_app, answer, count, run_config)  # type: ignore[arg-type]
        content = json.loads((Path(folder) / "privacy.json").read_text())
    rows: list[dict[str, Any]] = content["guarantees"]
    return rows


def write_trust(folder: Path, count: int) -> dict[int, dict[str, str]]:
    """Write the files of devices that trust each other; return their node configurations."""
    from strategies.mechanisms.key_agreement import public_identity

    keys = [bytes([number + 1]) * 32 for number in range(count)]
    trusted = folder / "trusted"
    trusted.write_text("\n".join(public_identity(key).hex() for key in keys))
    for number, key in enumerate(keys):
        file = folder / f"identity{number}"
        file.touch(mode=0o600)
        file.write_text(key.hex())
    return {
        number: {"identity-key": str(folder / f"identity{number}"), "trusted-peers": str(trusted)}
        for number in range(count)
    }


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, overrides in RUNS.items():
        content = {"overrides": list(overrides), "guarantees": list_guarantees(name)}
        text = json.dumps(content, indent=1, ensure_ascii=False)
        (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
