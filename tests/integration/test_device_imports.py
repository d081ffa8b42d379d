"""What a device imports to answer each method: nothing that it does not need."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

UNNEEDED = ("opacus", "torchvision", "matplotlib", "hydra", "omegaconf", "datasets")

ANSWER = """
    import json, sys, pathlib
    import fl_app.client_app as client
    from fl_app.engines.flower_internals import deliver, identify_process
    from fl_app.settings import RunSettings
    from fl_app.registry import build_strategy
    from fl_app.search_task import planned_parameters
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
    import dataclasses, numpy as np
    identify_process(1)
    folder, texts = sys.argv[1], json.loads(sys.argv[2])
    node = {"partition-id": 0, "num-partitions": 4, "state-dir": folder, "max-epsilon": 100.0,
            "allowed-strategies": "dp_fedpaq,niss,dp_fts_de"}
    def ask(config, arrays=None):
        content = RecordDict({"config": ConfigRecord(config)})
        if arrays is not None:
            content["arrays"] = arrays
        message = deliver(Message(content, 7, "train"))
        reply = client.app(message, Context(len(config), 7, dict(node), RecordDict(), {}))
        assert reply.has_content(), reply.error
    from strategies.dp_fedpaq.messages import model_record
    from strategies.dp_fts_de.messages import broadcast_record
    model = model_record({
        "linear.weight": np.zeros((10, 64), np.float32), "linear.bias": np.zeros(10, np.float32)
    })
    settings = RunSettings.from_json(texts["dp_fedpaq"])
    given = dataclasses.replace(build_strategy(settings).parameters, num_participations=2)
    common = {"settings": texts["dp_fedpaq"], "server-round": 1}
    ask({**common, "dp-fedpaq": given.to_json()}, model)
    search = RunSettings.from_json(texts["dp_fts_de"])
    ask({"settings": texts["dp_fts_de"], "server-round": 1, "agent": 0, "upload": True,
         "dp-fts-de": planned_parameters(search).to_json()}, broadcast_record(None))
    ask({"settings": texts["niss"], "server-round": 1, "attempt": 1, "phase": "register",
         "run-tag": bytes(16), "niss": texts["niss_parameters"]})
    print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.slow
def test_a_device_imports_what_its_methods_need(tmp_path: Path) -> None:
    from fl_app.config import compose_settings
    from fl_app.engines.flower_internals import identify_process
    from tests.fl_app.devices import CLIENTS, METHODS, record_requests

    identify_process(1)
    common = ("randomness=secret", f"num_clients={CLIENTS}", "num_rounds=2")
    texts = {
        name: compose_settings([*common, *overrides]).to_json()
        for name, overrides in METHODS.items()
    }
    registration = record_requests(tmp_path, *METHODS["niss"])
    config = registration[0].content["config"]
    texts["niss"], texts["niss_parameters"] = str(config["settings"]), str(config["niss"])  # type: ignore[index]
    (tmp_path / "state").mkdir(mode=0o700)
    done = subprocess.run(
        [
            *(sys.executable, "-c", textwrap.dedent(ANSWER)),
            *(str(tmp_path / "state"), json.dumps(texts)),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    roots = {name.partition(".")[0] for name in loaded}
    assert roots & set(UNNEEDED) == set()
    assert "fl_app.server_app" not in loaded
    assert "fl_app.config" not in loaded
    assert not any(name.startswith("fl_app.report") for name in loaded)
