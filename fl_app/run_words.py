"""The words behind ``fl-app run``: overrides, and Hydra's own flags."""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from fl_app.errors import ConfigError

_ALLOWED = (
    "key=value, -m, --config-dir FOLDER, --debug, --help, --cfg job|hydra|all (with --package KEY, "
    "--resolve), --info, --hydra-help, --version"
)
_INFORMATION = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")


@dataclass(frozen=True)
class RunWords:
    """The words behind ``fl-app run``.

    Attributes
    ----------
    overrides : list of str
        ``key=value``, one for ``--config-dir`` among them.
    flags : list of str
        Hydra's own flags, to be passed on.
    sweep : bool
        Whether values are swept over (``-m``).
    shows : bool
        Whether something is shown and nothing run (``--help``, ``--cfg`` ...).
    """

    overrides: list[str]
    flags: list[str]
    sweep: bool
    shows: bool


def parse_words(words: list[str]) -> RunWords:
    """Sort the words of a command line into overrides and Hydra's flags.

    Raises
    ------
    ConfigError
        For a word that is neither.
    """
    parser = _Parser(prog="fl-app run", add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("-cd", "--config-dir")
    parser.add_argument("-p", "--package")
    parser.add_argument("--resolve", action="store_true")
    one = parser.add_mutually_exclusive_group()
    one.add_argument("-m", "--multirun", action="store_true")
    one.add_argument("-c", "--cfg", choices=("job", "hydra", "all"))
    one.add_argument("-i", "--info", nargs="?", const="all", choices=_INFORMATION)
    for names in (["-h", "--help"], ["--hydra-help"], ["--version"]):
        one.add_argument(*names, dest="show", action="store_const", const=names[-1])
    given = parser.parse_intermixed_args(words)
    flags = [given.show] if given.show else []
    for name in ("cfg", "info", "package"):
        value = getattr(given, name)
        flags += [] if value is None else [f"--{name}", value]
    flags += ["--resolve"] if given.resolve else []
    if flags and flags[0] in ("--package", "--resolve"):
        raise ConfigError("argument", flags[0], f"{flags[0]} beside --cfg job|hydra|all")
    overrides = list(given.overrides)
    if given.config_dir is not None:
        folder = Path(given.config_dir).expanduser().absolute()
        if not folder.is_dir():
            raise ConfigError("--config-dir", given.config_dir, "a folder with files as in conf/")
        overrides.append(f"hydra.searchpath=[{json.dumps(f'file://{folder}', ensure_ascii=False)}]")
    sweep = given.multirun or "hydra.mode=MULTIRUN" in overrides
    return RunWords(overrides, flags, sweep, shows=bool(flags))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError.from_text(f"{message.removeprefix('argument ')}; allowed: {_ALLOWED}")
