"""The private parts of Flower that a device's start needs: its options, and being let in.

A SuperLink takes a SuperNode that was killed for connected until a minute after its last sign of
life, and Flower's SuperNode gives up at once when it is refused.
"""

import contextlib
import sys
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fl_app.engines.flower_internals import check_flower_version
from fl_app.errors import ConfigError

# How long a SuperNode asks to be let in, and how often.
LET_IN_SECONDS, ASK_SECONDS = 120.0, 2.0


class PatientActivation:
    """What a SuperNode activates its node by, again and again while it still counts as connected.

    A key that nobody has registered gets the same error. What tells them apart is the number of the
    node that was activated with this key before: the SuperLink knows the two together, or not.

    Parameters
    ----------
    activate : callable
        Flower's own, a method of its client.
    memory : Path or None
        Where the number is kept; None: it is not, and a refusal is final.

    Attributes
    ----------
    happened : bool
        Whether there has been a connection.
    """

    def __init__(self, activate: Callable[[Any, Any], Any], memory: Path | None) -> None:
        self._activate, self._memory = activate, memory
        self.happened = False

    def __call__(self, client: Any, request: Any) -> Any:
        """Activate the node, or raise what Flower raised last."""
        begin = time.monotonic()
        told = False
        while True:
            try:
                response = self._activate(client, request)
                break
            except Exception as error:
                if time.monotonic() - begin >= LET_IN_SECONDS or not self._counts(client, error):
                    raise
            if not told:
                print(
                    "the SuperLink takes this device for connected, as it does for a minute after "
                    f"a kill: asking again for {LET_IN_SECONDS:g} s",
                    file=sys.stderr,
                    flush=True,
                )
            told = True
            time.sleep(ASK_SECONDS)
        self.happened = True
        if self._memory is not None:
            with contextlib.suppress(OSError):
                self._memory.write_text(f"{response.node_id}\n", encoding="ascii")
        return response

    def _counts(self, client: Any, error: Exception) -> bool:
        """Return whether the node was refused, but the SuperLink knows it by its key."""
        from flwr.proto.node_pb2 import Node
        from flwr.proto.run_pb2 import GetRunRequest
        from flwr.supercore.error import ApiErrorCode, FlowerError

        answer = getattr(error, "response", None)
        refused = None if answer is None else FlowerError.from_json(answer.text)
        if refused is None or refused.code != ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED:
            return False
        if self._memory is None:
            return False
        try:
            number = int(self._memory.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return False
        try:
            # Of no run: what is answered is whether the key is this node's.
            client.GetRun(GetRunRequest(node=Node(node_id=number), run_id=0))
        except Exception as error:
            answer = getattr(error, "response", None)
            return answer is None or answer.status_code != HTTPStatus.UNAUTHORIZED
        return True


def activate_patiently(memory: Path | None) -> PatientActivation:
    """Let the SuperNode of this process activate its node as `PatientActivation` says."""
    check_flower_version()
    from flwr.supernode.fleet_http_client import FleetHttpClient

    patient = PatientActivation(FleetHttpClient.ActivateNode, memory)

    def activate(client: Any, request: Any) -> Any:
        return patient(client, request)

    FleetHttpClient.ActivateNode = activate  # type: ignore[method-assign,assignment]
    return patient


def read_node_config(text: str) -> dict[str, Any]:
    """Return a node configuration as a SuperNode reads it; ConfigError if it cannot be read."""
    from flwr.common.config import parse_config_args

    try:
        return parse_config_args([text])
    except Exception as error:
        told = getattr(error, "message", str(error))
        raise ConfigError("--node-config", text, f"what Flower reads: {told}") from None
