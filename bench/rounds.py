"""Milliseconds a round of the in-process engine, and the ratio to a plain PyTorch loop.

The work is the same: digits, the same partition and batches' sizes, float32 SGD; the loop clips the
update and adds noise to the sum. The first round is left out.
"""

import argparse
import contextlib
import io
import json
import logging
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from fl_app.client_app import app as client_app
from fl_app.config import compose_settings
from fl_app.data import load_dataset
from fl_app.engines.in_process import run_in_process
from fl_app.models import build_model
from fl_app.server_app import app as server_app
from fl_app.settings import RunSettings


def ours(settings: RunSettings) -> list[float]:
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        run_config = {"settings": settings.to_json(), "output-dir": folder}
        run_in_process(server_app, client_app, settings.num_clients or 1, run_config)
        lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["seconds"] for line in lines[2:]]


def plain(settings: RunSettings) -> list[float]:
    dataset = load_dataset(settings.data, settings.num_clients or 1, settings.seed)
    model = build_model(settings.model, dataset.feature_shape, dataset.num_classes, settings.seed)
    weights = list(model.parameters())
    current = torch.nn.utils.parameters_to_vector(weights).detach().clone()
    rng, strategy = np.random.default_rng(0), settings.strategy
    times = []
    for _ in range(settings.rounds):
        begin = time.perf_counter()
        total = torch.zeros_like(current)
        for client in rng.choice(settings.num_clients, settings.num_sampled_clients, replace=False):
            with torch.no_grad():
                # A copy: vector_to_parameters makes the parameters views of the vector.
                torch.nn.utils.vector_to_parameters(current.clone(), weights)
            records = dataset.partition(int(client))
            features = torch.from_numpy(records.features)
            labels = torch.from_numpy(records.labels)
            optimizer = torch.optim.SGD(weights, lr=strategy.learning_rate)
            for step in range(strategy.local_steps or 1):
                part = slice(step * strategy.batch_size, (step + 1) * strategy.batch_size)
                optimizer.zero_grad()
                functional.cross_entropy(model(features[part]), labels[part]).backward()
                optimizer.step()
            with torch.no_grad():
                update = torch.nn.utils.parameters_to_vector(weights) - current
                total += update * torch.clamp(1.0 / update.norm(), max=1.0)
        total += 0.1 * torch.randn(total.shape)
        current = current + total / (settings.num_sampled_clients or 1)
        times.append(time.perf_counter() - begin)
    return times[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    print("| model | plain loop, ms | ours, ms | ratio |")
    print("|---|---|---|---|")
    for model in ("softmax_regression", "mlp", "cnn"):
        settings = compose_settings(
            [
                f"num_rounds={arguments.rounds}",
                "num_clients=40",
                "num_sampled_clients=20",
                f"model={model}",
                "strategy.sensitivity=whole_update",
                "strategy.clipping_norm=1",
                "strategy.target_epsilon=null",
                "strategy.noise_multiplier=0.1",
                "strategy.feature_norm=null",
                "strategy.local_steps=2",
                "strategy.num_levels=7",
            ]
        )
        loop, product = (statistics.median(f(settings)) * 1e3 for f in (plain, ours))
        print(f"| {model} | {loop:.1f} | {product:.1f} | {product / loop:.2f} |", flush=True)


if __name__ == "__main__":
    main()
