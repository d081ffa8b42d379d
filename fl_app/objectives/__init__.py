"""What agents maximise: an objective for each of N agents over one search space."""

from fl_app.objectives.objective import Objective, Observation, observe
from fl_app.objectives.registry import OBJECTIVES, load_objective
from fl_app.objectives.settings import (
    LandmineSettings,
    LocalTrainingSettings,
    ObjectiveSettings,
    SyntheticSettings,
    TrainingRunSettings,
    UserObjectiveSettings,
)

__all__ = [
    "OBJECTIVES",
    "LandmineSettings",
    "LocalTrainingSettings",
    "Objective",
    "ObjectiveSettings",
    "Observation",
    "SyntheticSettings",
    "TrainingRunSettings",
    "UserObjectiveSettings",
    "load_objective",
    "observe",
]
