"""conf/ to settings: the only place that knows Hydra."""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fl_app.data import DataSettings
from fl_app.errors import ConfigError, unknown_key
from fl_app.registry import check_settings
from fl_app.settings import FORMAT_VERSION, RunSettings
from fl_app.structure import build

CONFIG_NAME = "config"
HYDRA_VERSION_BASE = "1.3"


def find_conf() -> Path:
    """Return the folder conf/: inside the package (wheel), or beside it (checkout, bundle)."""
    package = Path(__file__).resolve().parent
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / f"{CONFIG_NAME}.yaml").is_file():
            return folder
    raise ConfigError("conf", str(package.parent / "conf"), "a folder with config.yaml")


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
    GlobalHydra.instance().clear()
    folder = find_conf() if config_dir is None else config_dir
    try:
        with initialize_config_dir(str(folder.resolve()), version_base=HYDRA_VERSION_BASE):
            composed = compose(CONFIG_NAME, overrides=overrides)
    except (HydraException, OmegaConfBaseException) as error:
        raise _explain(error, overrides, folder) from None
    return settings_from(composed)


def settings_from(composed: DictConfig) -> RunSettings:
    """Turn a composed configuration into checked settings."""
    try:
        values = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigError("configuration", _first_line(error), "values that resolve") from None
    assert isinstance(values, dict)
    plain: dict[str, Any] = {str(key): value for key, value in values.items() if key != "hydra"}
    try:
        settings = build(RunSettings, plain)
    except ConfigError:
        raise
    except ValueError as error:
        key, _, rest = str(error).partition(": ")
        value, _, allowed = rest.partition("; ")
        raise ConfigError(key, value, allowed) from None
    check_settings(settings)
    return settings


def to_yaml(settings: RunSettings) -> str:
    """Return the settings as YAML, for a run's folder."""
    return OmegaConf.to_yaml(
        OmegaConf.create({"format_version": FORMAT_VERSION, **dataclasses.asdict(settings)})
    )


def run_under_hydra(
    folder: Path, words: list[str], job: Callable[[RunSettings, Path, list[str]], None]
) -> None:
    """Hand the command line to Hydra, which calls `job` for each configuration of it.

    Parameters
    ----------
    folder : Path
        conf/.
    words : list of str
        Command-line words: overrides and Hydra's own flags.
    job : callable
        Given the settings, the run's folder and the job's overrides.
    """

    @hydra.main(config_path=str(folder), config_name=CONFIG_NAME, version_base=HYDRA_VERSION_BASE)
    def task(composed: DictConfig) -> None:
        given = HydraConfig.get()
        job(settings_from(composed), Path(given.runtime.output_dir), list(given.overrides.task))

    GlobalHydra.instance().clear()
    before = sys.argv
    sys.argv = ["fl-app run", *words]
    try:
        task()
    finally:
        sys.argv = before


def data_settings(run_config: str, overrides: list[str]) -> DataSettings:
    """Return the data settings of a run, with overrides of the data alone.

    Parameters
    ----------
    run_config : str
        The run's config.yaml.
    overrides : list of str
        ``data=NAME`` and ``data.key=value``.
    """
    data = OmegaConf.create(run_config).data
    for word in overrides:
        key, _, value = word.partition("=")
        if key == "data":
            file = find_conf() / "data" / f"{value}.yaml"
            if not file.is_file():
                names = sorted(path.stem for path in file.parent.glob("*.yaml"))
                raise ConfigError("data", value, ", ".join(names))
            data = OmegaConf.load(file)
        elif key.startswith("data."):
            change = OmegaConf.from_dotlist([f"{key.removeprefix('data.')}={value}"])
            data = OmegaConf.merge(data, change)
        else:
            raise ConfigError("overrides", word, "data=NAME or data.key=value")
    values = OmegaConf.to_container(data, resolve=True)
    assert isinstance(values, dict)
    return build(DataSettings, {str(k): v for k, v in values.items()}, "data.")


def read_run_settings(run_config: str) -> RunSettings:
    """Return the settings that a run's config.yaml holds."""
    composed = OmegaConf.create(run_config)
    assert isinstance(composed, DictConfig)
    version = composed.pop("format_version", None)
    if version != FORMAT_VERSION:
        raise ConfigError("format_version", version, str(FORMAT_VERSION))
    return settings_from(composed)


def expand_sweep(overrides: list[str]) -> list[list[str]]:
    """Return the overrides of every job of a Hydra sweep, as its basic sweeper makes them."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    try:
        parsed = OverridesParser.create().parse_overrides(overrides=overrides)
        return [list(job) for job in BasicSweeper.split_arguments(parsed, None)[0]]
    except HydraException as error:
        raise ConfigError("overrides", _first_line(error), "Hydra's override syntax") from None


def _explain(error: Exception, overrides: list[str], folder: Path) -> ConfigError:
    """Turn Hydra's message into key, value, allowed."""
    text = _first_line(error)
    if text.startswith("Could not override "):
        key = text.split("'")[1]
        *groups, leaf = key.split(".")
        with initialize_config_dir(str(folder.resolve()), version_base=HYDRA_VERSION_BASE):
            whole = compose(CONFIG_NAME)
        parent = OmegaConf.select(whole, ".".join(groups)) if groups else whole
        if isinstance(parent, DictConfig):
            prefix = "".join(group + "." for group in groups)
            return unknown_key(leaf, [str(name) for name in parent], prefix)
    if text.startswith("Could not find '") or "Could not load" in text or "In '" in text:
        name = str(error).split("'")[1] if "'" in str(error) else text
        group = name.split("/")[0]
        choices = sorted(p.stem for p in (folder / group).glob("*.yaml"))
        if choices:
            return ConfigError(group, name.partition("/")[2] or name, ", ".join(choices))
    return ConfigError("overrides", " ".join(overrides) or "none", text)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
