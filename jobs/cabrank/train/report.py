"""`report.html`: one file with everything in it that opens anywhere, offline, on a phone, in the dark; for all jobs."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from string import Template


@dataclass(frozen=True, kw_only=True)
class Table:
    """A titled table; the first column is text, the others are numbers unless `words` says otherwise. A header of empty
    names is not drawn."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: bool = False
    """Whether the cells are sentences: set to the left and broken into lines."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A PNG, what it shows (read out where it cannot be seen), and how to read it."""

    png: bytes
    alt: str
    caption: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a report says. All text is plain text: markup in it is shown, never obeyed."""

    title: str
    summary: str
    """One sentence with the result."""
    alert: str = ""
    """What went wrong, if anything did; shown above all else."""
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    notes: Sequence[str] = ()
    """How to read it: one paragraph each."""
    settings: Mapping[str, object] = field(default_factory=dict)
    footer: str = ""


def to_html(report: Report) -> bytes:
    """The page, UTF-8. Pictures are inside it; nothing is fetched, no script runs."""
    template = Template(files("cabrank.train").joinpath("report.html").read_text(encoding="utf-8"))
    settings = [[name, "none" if value is None else str(value)] for name, value in report.settings.items()]
    page = template.substitute(
        title=escape(report.title),
        summary=escape(report.summary),
        alert=f'<p class="alert" role="alert">{escape(report.alert)}</p>' if report.alert else "",
        tables="".join(_table(table) for table in report.tables),
        pictures=_section("Pictures", map(_picture, report.pictures)),
        notes=_section("How to read this", (f"<p>{escape(note)}</p>" for note in report.notes)),
        settings=_table(Table(title="Settings", header=("setting", "value"), rows=settings, words=True)),
        footer=escape(report.footer),
    )
    return page.encode()


def _section(title: str, parts: Iterable[str]) -> str:
    """A titled section, or nothing where there is nothing to put into it."""
    inside = "".join(parts)
    return f"<section><h2>{escape(title)}</h2>{inside}</section>" if inside else ""


def _table(table: Table) -> str:
    names = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.header)
    head = f"<thead><tr>{names}</tr></thead>" if any(table.header) else ""
    body = "".join(f"<tr>{_row(row)}</tr>" for row in table.rows)
    kind = "words" if table.words else "numbers"
    # focusable, so that a keyboard can scroll what is wider than the screen
    scroll = f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">'
    drawn = f'<table class="{kind}">{head}<tbody>{body}</tbody></table>'
    return _section(table.title, [f"{scroll}{drawn}</div>"])


def _row(cells: Sequence[str]) -> str:
    first, *others = cells
    return f'<th scope="row">{escape(first)}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in others)


def _picture(picture: Picture) -> str:
    data = base64.b64encode(picture.png).decode("ascii")
    return (
        f'<figure><img src="data:image/png;base64,{data}" alt="{escape(picture.alt)}">'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
    )
