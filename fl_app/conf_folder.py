"""The folder conf/: where it is, and what a reader finds in it."""

from pathlib import Path

from fl_app.errors import ConfigError

CONFIG_NAME = "config"


def find_conf() -> Path:
    """Return the folder conf/: inside the package (wheel), or beside it (checkout, bundle)."""
    package = Path(__file__).resolve().parent
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / f"{CONFIG_NAME}.yaml").is_file():
            return folder
    raise ConfigError("conf", str(package.parent / "conf"), "a folder with config.yaml")


def describe_choices(group: str) -> dict[str, str]:
    """Return the choices of a group, each with the first comment of its file."""
    found = {}
    for file in sorted((find_conf() / group).glob("*.yaml")):
        lines = file.read_text(encoding="utf-8").splitlines()
        comments = [line[1:].strip() for line in lines if line.startswith("# ")]
        texts = [comment for comment in comments if not comment.startswith("@package")]
        found[file.stem] = texts[0] if texts else ""
    return found
