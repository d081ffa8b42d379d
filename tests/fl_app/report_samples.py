"""A small run's folder, for the tests of the report."""

import json

GUARANTEE = {
    "adversary": "server",
    "colluding_fraction": 0,
    "unit": "record",
    "neighboring_relation": "replace_one",
    "epsilon": 7.991,
    "delta": 1e-5,
    "accountant": "PLD",
    "randomness": "secret",
    "assumptions": ["the device runs this code", "no Sybils", "floating point"],
    "valid": True,
    "why_not": None,
}
SUMMARY = {
    "format_version": 1,
    "strategy": "dp_fedpaq",
    "mode": "sound",
    "seed": 3,
    "randomness": "secret",
    "engine": "in_process",
    "num_rounds": 3,
    "num_clients": 10,
    "num_parameters": 650,
    "test_accuracy": 0.8714,
    "test_loss": 0.4213,
    "uplink_bytes_total": 15600,
    "uplink_bits_per_parameter": 6.4,
    "epsilon": 7.991,
    "delta": 1e-5,
    "wall_seconds": 12.34,
    "versions": {"flwr": "1.42.0"},
    "model_sha256": "9f86d081",
}
SEEDED = {"randomness": "seeded", "valid": False, "why_not": "The seed gives the noise away."}
NO_NOISE = {"epsilon": None, "delta": None, "valid": False, "why_not": "clipping_norm is null."}


def a_round(number, **changes):
    entry = {
        "round": number,
        "seconds": 0.2,
        "num_sampled": 10 if number else 0,
        "num_replies": 10 if number else 0,
        "num_failures": 0,
        "num_ineligible": 0,
        "train_loss": None,
        "test_loss": 2.3 / (1 + number),
        "test_accuracy": 0.1 + 0.2 * number,
        "uplink_bytes": 5200 if number else 0,
        "downlink_bytes": 26000 if number else 0,
        "control_bytes": 900 if number else 0,
        "epsilon": float(number),
        "delta": 1e-5,
    }
    return entry | changes


def save_run(folder, *, rounds=4, metrics=None, summary=None, guarantees=None, config="seed: 3\n"):
    folder.mkdir(parents=True)
    metrics = [a_round(number) for number in range(rounds)] if metrics is None else metrics
    text = "".join(json.dumps(entry) + "\n" for entry in metrics)
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
    privacy = {
        "format_version": 1,
        "guarantees": [GUARANTEE] if guarantees is None else guarantees,
    }
    (folder / "privacy.json").write_text(json.dumps(privacy), encoding="utf-8")
    (folder / "summary.json").write_text(json.dumps(SUMMARY | (summary or {})), encoding="utf-8")
    (folder / "config.yaml").write_text(config, encoding="utf-8")
    return folder
