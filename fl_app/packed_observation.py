"""An observation as a line of text, as a client's file keeps it."""

import json
import math
from pathlib import Path

from fl_app.errors import RunError
from strategies.device_state import NOTES, Note, Observation


def pack_observation(observation: Observation) -> str:
    """Return coordinates, value and note as JSON, which gives back the same numbers."""
    noted = [observation.note] if observation.note else []
    return json.dumps([*observation.point, observation.value, *noted])


def unpack_observation(content: str, file: Path) -> Observation:
    """Return the observation; RunError, which names the file it is from, if it is damaged."""
    try:
        *point, value = json.loads(content)
        note: Note = ""
        if value in NOTES:
            note, value = value, point.pop()
        numbers = (*point, value)
        is_sound = all(type(each) in (int, float) and math.isfinite(each) for each in numbers)
    except (ValueError, TypeError, IndexError):
        is_sound = False
    if not is_sound:
        # Without its content, which is the client's own.
        raise RunError(f"{file} is damaged: an observation that is none")
    return Observation(tuple(point), value, note)
