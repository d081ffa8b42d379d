"""conf/ to settings: the only place that knows Hydra.

What composing alone can refuse is refused before torch and the methods are imported: a typing
mistake is answered at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fl_app.conf_folder import CONFIG_NAME, find_conf
from fl_app.errors import ConfigError, RunError
from fl_app.override_errors import explain_override, first_line

if TYPE_CHECKING:
    from fl_app.data import DataSettings
    from fl_app.settings import RunSettings

HYDRA_VERSION_BASE = "1.3"
_FULL_ERROR = "HYDRA_FULL_ERROR"
_SEARCH_PATH = "hydra.searchpath="
RESUME = "resume"
_SYNTAX = "Hydra's syntax; put text with special characters in quotes: 'data.root=\"my, data\"'"

__all__ = [
    "compose_config",
    "compose_settings",
    "data_settings",
    "expand_home",
    "expand_sweep",
    "find_conf",
    "parse_override",
    "resumed_settings",
    "run_under_hydra",
    "settings_from",
    "sweeps_by_itself",
]


def compose_settings(overrides: list[str], config_dir: Path | None = None) -> RunSettings:
    """Compose and check the configuration of one run.

    Parameters
    ----------
    overrides : list of str
        Hydra overrides, for example ``strategy.target_epsilon=4``.
    config_dir : Path or None
        Another folder to compose from; None: `find_conf`.

    Raises
    ------
    ConfigError
        For whatever is not allowed: the key, its value and what is allowed.
    """
    return settings_from(compose_config(overrides, config_dir))


def compose_config(overrides: list[str], config_dir: Path | None = None) -> DictConfig:
    """Compose the configuration of one run, without checking its values.

    Raises
    ------
    ConfigError
        For an override that Hydra cannot read, a key or a group's choice that does not exist, or
        values to sweep over.
    """
    folder = find_conf() if config_dir is None else config_dir
    overrides = expand_home(overrides)
    with _hydra(folder):
        try:
            for word in overrides:
                parse_override(word)
            return compose(CONFIG_NAME, overrides=overrides)
        except ConfigError:
            raise
        # Files of the user's own can be broken in any way.
        except Exception as error:
            raise _explain(error, overrides) from error


def settings_from(composed: DictConfig) -> RunSettings:
    """Turn a composed configuration into checked settings."""
    try:
        values = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        key = error.full_key or "configuration"
        raw = OmegaConf.to_container(composed, resolve=False)
        raise ConfigError(key, _look_up(raw, key), f"a value ({first_line(error)})") from error
    assert isinstance(values, dict)
    from fl_app.run_config import build_settings

    # How the run is started is not part of what it is.
    return build_settings({str(k): v for k, v in values.items() if k not in ("hydra", RESUME)})


def resumed_settings(overrides: list[str]) -> tuple[Path, RunSettings] | None:
    """Return the folder of a run that is to go on, and its settings; None without ``resume``.

    Parameters
    ----------
    overrides : list of str
        ``resume=FOLDER``, ``engine.*``, ``hydra.*``, and what `keep_to_named_code` asks for.

    Raises
    ------
    ConfigError
        For another override, if the folder is not a run's, or names what no override names.
    """
    from fl_app.named_code import CODE_KEYS, keep_to_named_code
    from fl_app.run_config import build_settings, read_run_config
    from fl_app.run_files import CONFIG_FILE

    names = {word: word.lstrip("+").partition("=")[0] for word in expand_home(overrides)}
    groups = {word: name.partition(".")[0] for word, name in names.items()}
    # Without the others, which a run's own strategy may have and the default one has not.
    kept = [word for word, group in groups.items() if group in (RESUME, "engine", "hydra")]
    given = compose_config(kept)[RESUME]
    if given is None:
        return None
    if type(given) is int:
        given = str(given)  # a sweep's folders have numbers as names
    if not isinstance(given, str) or not given:
        raise ConfigError(RESUME, given, "the folder of a run, or null")
    for word, key in names.items():
        if key not in CODE_KEYS and (word not in kept or groups[word] == RESUME != key):
            own = f"and {', '.join(CODE_KEYS)}, named again"
            allowed = f"engine.* and hydra.* beside {RESUME}={given}, {own}"
            raise ConfigError(key, word.partition("=")[2], allowed)
    engine = [word for word in kept if groups[word] == "engine"]
    folder = Path(given).expanduser()
    file = folder / CONFIG_FILE
    try:
        values = read_run_config(file.read_text(encoding="utf-8"))
        values["engine"] = _override_group("engine", values.get("engine", {}), engine)
        return folder, keep_to_named_code(build_settings(values), overrides)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError(
            RESUME, given, f"the folder of a run, with {CONFIG_FILE} ({reason})"
        ) from None
    except ConfigError as error:
        if error.key.startswith("engine"):
            raise
        raise ConfigError.from_text(f"{file}: {error}") from error


def data_settings(run_config: str, overrides: list[str]) -> DataSettings:
    """Return the data settings of a run, with overrides of the data alone.

    Parameters
    ----------
    run_config : str
        The run's config.yaml.
    overrides : list of str
        ``data=NAME`` and ``data.key=value``.
    """
    from fl_app.data import DataSettings
    from fl_app.run_config import read_run_config
    from fl_app.structure import build

    data = read_run_config(run_config).get("data", {})
    return build(DataSettings, _override_group("data", data, overrides), "data.")


def _override_group(group: str, values: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """Apply ``group=NAME`` and ``group.key=value`` to a group's values."""
    first = f"{group}="
    for word in sorted(expand_home(overrides), key=lambda word: not word.startswith(first)):
        key = word.partition("=")[0]
        if "=" not in word or not (key == group or key.startswith(f"{group}.")):
            raise ConfigError("argument", word, f"{group}=NAME or {group}.key=value")
        value = parse_override(word).value()
        if key == group:
            chosen = OmegaConf.to_container(compose_config([word])[group])
            assert isinstance(chosen, dict)
            values = {str(name): each for name, each in chosen.items()}
            continue
        *groups, leaf = key.split(".")[1:]
        target = values
        for each in groups:
            target = target.setdefault(each, {})
            if not isinstance(target, dict):
                raise ConfigError(key, value, "a key that exists")
        target[leaf] = value
    return values


def sweeps_by_itself(overrides: list[str]) -> bool:
    """Whether a file among the choices makes a sweep of it (``hydra.mode: MULTIRUN``)."""
    with _hydra(find_conf()):
        try:
            composed = compose(CONFIG_NAME, expand_home(overrides), return_hydra_config=True)
            return str(composed.hydra.mode).endswith("MULTIRUN")
        except Exception:
            # Whoever composes it for a run says what is wrong.
            return False


def expand_sweep(overrides: list[str]) -> list[list[str]]:
    """Return the overrides of every job of a Hydra sweep, as its basic sweeper makes them."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    overrides = expand_home(overrides)
    with _hydra(find_conf()):
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        words = [parse_override(word, sweep=True) for word in overrides]
        single = [str(each.input_line) for each in words if not each.is_sweep_override()]
        try:
            composed = compose(CONFIG_NAME, overrides=single, return_hydra_config=True)
        except Exception as error:
            raise _explain(error, single) from error
        params = composed.hydra.sweeper.get("params") or {}
        try:
            whole = parser.parse_overrides([f"{k}={v}" for k, v in params.items()] + overrides)
            return [list(job) for job in BasicSweeper.split_arguments(whole, None)[0]]
        except HydraException as error:
            raise ConfigError("argument", " ".join(overrides), first_line(error)) from error


def run_under_hydra(
    flags: list[str],
    overrides: list[str],
    job: Callable[[Callable[[], RunSettings], Path, list[str], Path], None],
) -> None:
    """Hand the command line to Hydra, which calls `job` for each configuration of it.

    Parameters
    ----------
    flags, overrides : list of str
        Hydra's own flags, and the overrides.
    job : callable
        Given a function that returns the settings, the run's folder, the job's overrides, and the
        folder of a sweep.

    Raises
    ------
    ConfigError
        If Hydra refuses what it is given.
    RunError
        If the folder of a run cannot be created.
    """

    @hydra.main(
        config_path=str(find_conf()), config_name=CONFIG_NAME, version_base=HYDRA_VERSION_BASE
    )
    def task(composed: DictConfig) -> None:
        given = HydraConfig.get()
        folder, every = Path(given.runtime.output_dir), Path(given.sweep.dir).absolute()
        job(lambda: settings_from(composed), folder, list(given.overrides.task), every)

    outer, arguments = GlobalHydra.instance().hydra, sys.argv
    full_error = os.environ.get(_FULL_ERROR)
    GlobalHydra.instance().clear()
    sys.argv = ["fl-app run", *flags, *expand_home(overrides)]
    # Makes Hydra raise its errors instead of printing them and exiting.
    os.environ[_FULL_ERROR] = "1"
    try:
        task()
    except (HydraException, OmegaConfBaseException) as error:
        key = getattr(error, "full_key", None) or "hydra"
        value = dict(word.split("=", 1) for word in overrides).get(key, " ".join(overrides))
        raise ConfigError(key, value, f"what can be read ({first_line(error)})") from error
    except OSError as error:
        if error.filename is None:
            raise
        raise RunError(f"cannot write to {error.filename}: {error.strerror}") from error
    finally:
        sys.argv = arguments
        GlobalHydra.instance().hydra = outer
        if full_error is None:
            del os.environ[_FULL_ERROR]
        else:
            os.environ[_FULL_ERROR] = full_error


def expand_home(overrides: list[str]) -> list[str]:
    """Expand the home folder in data.root=~/x, which most shells leave and Hydra cannot read."""
    found = []
    for word in overrides:
        key, _, value = word.partition("=")
        plain = value.startswith("~/") and not set(value) & set(",'\"\\")
        found.append(f'{key}="{os.path.expanduser(value)}"' if plain else word)
    return found


@contextmanager
def _hydra(folder: Path) -> Iterator[None]:
    """Let Hydra compose from a folder, and leave its global state as it was."""
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(folder.resolve()), version_base=HYDRA_VERSION_BASE):
            yield
    finally:
        GlobalHydra.instance().hydra = outer


def parse_override(word: str, sweep: bool = False) -> Override:
    """Parse ``key=value``; ConfigError for anything else, and for several values if not `sweep`."""
    key, equals, value = word.partition("=")
    if not equals or not key.strip("+") or key.startswith("~"):
        raise ConfigError("argument", word, "key=value (no key can be left out)")
    try:
        parsed = OverridesParser.create().parse_override(word)
    except HydraException as error:
        raise ConfigError(key, value, _SYNTAX) from error
    if parsed.is_sweep_override() and not sweep:
        raise ConfigError(key, value, "one value (several, one run each, with -m)")
    return parsed


def _explain(error: Exception, overrides: list[str]) -> ConfigError:
    """Find the override that Hydra cannot apply, and say why: key, value, allowed.

    Hydra reads its configuration where `_hydra` says.
    """
    # As Hydra does: where files are looked for, the groups' choices, and the keys that these have.
    in_order = sorted(
        overrides,
        key=lambda word: -1 if word.startswith(_SEARCH_PATH) else "." in word.partition("=")[0],
    )
    whole: Any = {}
    for count in range(len(in_order) + 1):
        try:
            composed = compose(CONFIG_NAME, in_order[:count], return_hydra_config=True)
            whole = OmegaConf.to_container(composed, resolve=False)
        except Exception as fault:
            return explain_override(in_order[count - 1] if count else "conf=", fault, whole)
    return ConfigError("overrides", " ".join(overrides), first_line(error))


def _look_up(values: Any, key: str) -> Any:
    for part in key.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return values
