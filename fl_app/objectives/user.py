"""The user's own objective: a function of theirs, named by import path."""

import inspect
from collections.abc import Mapping

from fl_app.errors import ConfigError
from fl_app.import_path import import_function
from fl_app.objectives.objective import Objective
from fl_app.objectives.settings import UserObjectiveSettings
from fl_app.search_space import AxisValue


class UserObjective(Objective):
    """A function of (point, agent); `trial` is not handed on: its randomness is the user's.

    Parameters
    ----------
    settings : UserObjectiveSettings

    Raises
    ------
    ConfigError
        If there is no such function here, or it does not take two arguments.
    """

    def __init__(self, settings: UserObjectiveSettings) -> None:
        space = settings.space()
        super().__init__(space, settings.num_agents, (settings.low, settings.high))
        assert settings.path is not None
        try:
            self._function = import_function("objective.path", settings.path)
        except ValueError as error:
            raise ConfigError.from_text(str(error)) from error
        try:
            inspect.signature(self._function).bind({}, 0)
        except TypeError as error:
            raise ConfigError(
                "objective.path",
                settings.path,
                f"a function of (point: dict, agent: int); this one cannot be called so ({error})",
            ) from error
        except ValueError:
            pass  # a built-in function that does not say what it takes

    def evaluate(self, agent: int, point: Mapping[str, AxisValue], trial: int = 0) -> float:  # noqa: D102
        value: float = self._function(dict(point), agent)
        return value
