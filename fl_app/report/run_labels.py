"""Name several runs by what tells them apart."""

from __future__ import annotations

from collections.abc import Sequence

from fl_app.report.run_folder import RunFolder

_LONGEST_LABEL = 40
_PUBLISHED = "published."
_OBJECTIVE, _OBJECTIVE_NAME = "objective.", "objective.name"


def list_settings(config_text: str | None) -> dict[str, str]:
    """Flatten a configuration into dotted keys.

    Parameters
    ----------
    config_text : str or None
        YAML in block style, as Hydra writes it.

    Returns
    -------
    dict
        Dotted key -> value as written. Lines that are no ``key: value`` (items of lists, text
        blocks) are joined to the key above them.
    """
    settings: dict[str, str] = {}
    parents: list[tuple[int, str]] = []
    for line in (config_text or "").splitlines():
        content = line.strip()
        if not content or content.startswith("#"):
            continue
        indent = len(line) - len(line.lstrip())
        key, separator, value = content.partition(":")
        if not separator or content.startswith("-") or (value and not value.startswith(" ")):
            dotted = ".".join(name for _, name in parents)
            settings[dotted] = f"{settings.get(dotted, '')} {content}".strip()
            continue
        while parents and parents[-1][0] >= indent:
            parents.pop()
        parents.append((indent, key))
        if value.strip():
            settings[".".join(name for _, name in parents)] = value.strip()
    return settings


def list_effective(config_text: str | None) -> dict[str, str]:
    """Flatten a configuration as `list_settings`, without what changes nothing of a run."""
    settings = list_settings(config_text)
    return {key: value for key, value in settings.items() if not key.startswith(_PUBLISHED)}


def find_differences(runs: Sequence[RunFolder]) -> list[dict[str, str]]:
    """Find the settings in which runs differ.

    Parameters
    ----------
    runs : sequence of RunFolder
        The runs to compare.

    Returns
    -------
    list of dict
        For each run, the dotted keys that do not have one value in all runs, with this run's
        value. Keys that a run lacks are left out, and what was published, which changes nothing.
    """
    settings = [list_effective(run.config_text) for run in runs]
    keys = list(dict.fromkeys(key for each in settings for key in each))
    differing = [key for key in keys if len({each.get(key) for each in settings}) > 1]
    return [{key: each[key] for key in differing if key in each} for each in settings]


def name_objectives(runs: Sequence[RunFolder]) -> list[list[str]]:
    """Say what tells the objectives of searches apart, whose values are no match for each other.

    Returns
    -------
    list of list of str
        For each run ``key=value``: the objective's name or, where that is the same, the settings of
        it that differ and are short.
    """
    found = [
        {key: value for key, value in each.items() if key.startswith(_OBJECTIVE)}
        for each in find_differences(runs)
    ]
    if any(_OBJECTIVE_NAME in each for each in found):
        return [[f"objective={each.get(_OBJECTIVE_NAME, '')}"] for each in found]
    long = {key for each in found for key, value in each.items() if len(value) > _LONGEST_LABEL}
    return [[f"{key}={value}" for key, value in each.items() if key not in long] for each in found]


def label_runs(runs: Sequence[RunFolder]) -> list[str]:
    """Give every run a short name that no other of these runs has.

    Parameters
    ----------
    runs : sequence of RunFolder
        The runs to name.

    Returns
    -------
    list of str
        The settings that differ, if that is short and unique; else the end of the folder's path,
        with as many parts as it takes; else (one folder given twice) a number.
    """
    differences = find_differences(runs)
    keys = _choose_keys(differences)
    short = _shorten_keys(keys)
    labels = [
        ", ".join(f"{short[key]}={each[key]}" for key in keys if key in each)
        for each in differences
    ]
    if _tell_apart(labels) and max(map(len, labels)) <= _LONGEST_LABEL:
        return labels
    for parts in range(1, max(len(run.path.parts) for run in runs) + 1):
        labels = ["/".join(run.path.parts[-parts:]) for run in runs]
        if _tell_apart(labels):
            return labels
    return [f"run {number}" for number in range(1, len(runs) + 1)]


def _choose_keys(differences: Sequence[dict[str, str]]) -> list[str]:
    """Choose few keys that still tell the runs apart, the last ones if there is a choice."""
    keys = list(dict.fromkeys(key for each in differences for key in each))

    def count_distinct(chosen: Sequence[str]) -> int:
        return len({tuple(each.get(key) for key in chosen) for each in differences})

    wanted = count_distinct(keys)
    for key in list(keys):
        rest = [each for each in keys if each != key]
        if rest and count_distinct(rest) == wanted:
            keys = rest
    return keys


def _shorten_keys(keys: Sequence[str]) -> dict[str, str]:
    """Map each dotted key to its last part, unless two keys end alike."""
    ends = [key.rpartition(".")[2] for key in keys]
    return {key: end if ends.count(end) == 1 else key for key, end in zip(keys, ends, strict=True)}


def _tell_apart(labels: Sequence[str]) -> bool:
    return all(labels) and len(set(labels)) == len(labels)
