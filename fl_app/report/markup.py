"""Build HTML whose text is escaped unless it was built here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_VOID = frozenset({"meta", "br"})


class Markup(str):
    """Text that is HTML already. Anything else is escaped where it enters an element."""

    __slots__ = ()


def element(name: str, *children: object, **attributes: str) -> Markup:
    """Build one element.

    Parameters
    ----------
    name : str
        The element's name.
    *children : object
        Its content; what is not `Markup` is turned into text and escaped.
    **attributes : str
        Its attributes, escaped. A trailing underscore is dropped (``class_``) and other
        underscores become hyphens (``data_label``).

    Returns
    -------
    Markup
        The element.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
    )
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def join(children: Iterable[object]) -> Markup:
    """Write children one after the other, escaping those that are not `Markup`."""
    return Markup(
        "".join(child if isinstance(child, Markup) else escape(str(child)) for child in children)
    )


def table(
    headers: Sequence[str], rows: Iterable[Sequence[object]], *, class_: str = "", text: int = 1
) -> Markup:
    """Build a table in a box that scrolls sideways when the screen is narrow.

    Parameters
    ----------
    headers : sequence of str
        The names of the columns.
    rows : iterable of sequences
        The cells, escaped unless they are `Markup`.
    class_ : str
        A class of the style sheet; "stack" puts the cells below each other on a phone.
    text : int
        How many columns hold text; the columns after those hold numbers and are set flush right.

    Returns
    -------
    Markup
        The table.
    """
    kinds = ["" if index < text else "number" for index in range(len(headers))]
    head = [
        element("th", header, scope="col", class_=kind)
        for header, kind in zip(headers, kinds, strict=True)
    ]
    body = [
        element(
            "tr",
            *(
                element("td", cell, class_=kind, data_label=header)
                for cell, kind, header in zip(row, kinds, headers, strict=True)
            ),
        )
        for row in rows
    ]
    content = element(
        "table", element("thead", element("tr", *head)), element("tbody", *body), class_=class_
    )
    return element("div", content, class_="card scroll")
