"""The folder of a user's own copy of a data set. Nothing is ever downloaded."""

from pathlib import Path

from fl_app.data.records import DataError


def require_folder(root: str | None, title: str, how_to_get: str, key: str = "data.root") -> Path:
    """Return the folder that data.root, or another key, names.

    Parameters
    ----------
    root : str or None
        `~` stands for the home folder; a relative path starts at the current folder.
    title : str
        Name of the data set, for the message.
    how_to_get : str
        What the folder must hold and where that comes from: whole sentences without the last dot.
    key : str
        The setting's name, for the message.

    Raises
    ------
    DataError
        If `root` is None or no folder.
    """
    if root is None:
        raise DataError(f"{key}: null; {title} does not come with this application. {how_to_get}")
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise DataError(f"{key}: {root!r} is not a folder ({folder.absolute()}). {how_to_get}")
    return folder


def require_files(
    root: str | None,
    names: tuple[str, ...],
    title: str,
    how_to_get: str,
    key: str = "data.root",
) -> list[Path]:
    """Return the files of these names in the folder that data.root, or another key, names.

    Raises
    ------
    DataError
        If the folder or one of the files is missing.
    """
    folder = require_folder(root, title, how_to_get, key)
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise DataError(f"{key}: {root!r} lacks {', '.join(missing)}. {how_to_get}")
    return [folder / name for name in names]
