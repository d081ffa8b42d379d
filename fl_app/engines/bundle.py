"""The folder that Flower bundles and sends to where the run executes."""

import shutil
from pathlib import Path

from fl_app.conf_folder import find_conf

PACKAGE = Path(__file__).resolve().parent.parent


def write_bundle(folder: Path) -> None:
    """Write the packages, conf/ and the project's file into `folder`, which must not exist.

    A copy serves a checkout and an installed wheel alike, and holds nothing else.
    """
    skip = shutil.ignore_patterns("__pycache__", "conf", "bundle")
    shutil.copytree(PACKAGE, folder / "fl_app", ignore=skip)
    shutil.copytree(PACKAGE.parent / "strategies", folder / "strategies", ignore=skip)
    shutil.copytree(find_conf(), folder / "conf")
    packed = PACKAGE / "bundle"
    project = packed if packed.is_dir() else PACKAGE.parent
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(project / name, folder / name)
