"""One run of the product in this process, for the measurements."""

import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any


def run_once(overrides: list[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run a configuration on the in-process engine; return its summary and its metrics.

    A run that was stopped (Ctrl-C, SIGTERM) raises KeyboardInterrupt: it is no result.
    """
    from fl_app.client_app import app as client_app
    from fl_app.config import compose_settings
    from fl_app.engines.in_process import run_in_process
    from fl_app.run_inputs import fill_num_clients
    from fl_app.server_app import app as server_app

    settings = fill_num_clients(compose_settings(overrides))
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        run_config = {"settings": settings.to_json(), "output-dir": folder}
        run_in_process(server_app, client_app, settings.num_clients or 1, run_config)
        metrics = (Path(folder) / "metrics.jsonl").read_text().splitlines()
        summary = json.loads((Path(folder) / "summary.json").read_text())
        if summary["interrupted"]:
            raise KeyboardInterrupt
        return summary, [json.loads(line) for line in metrics]
