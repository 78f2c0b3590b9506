"""The plot and the report: what is in them, and that a browser draws the page whole, alone and without complaint."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cabrank.train.metrics import Step
from cabrank.train.plots import loss_png
from cabrank.train.report import Picture, Report, Table, to_html

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
HOSTILE = "<script>console.error('taken')</script>&\"'$title"


def some_steps(losses: Sequence[float]) -> list[Step]:
    return [Step(i, 0, 10, loss, 1.0, 0.1, 0.1) for i, loss in enumerate(losses)]


def plot(losses: Sequence[float], mean: float = 20.0, optimum: float = 10.0) -> bytes:
    return loss_png(some_steps(losses), label="fare_$", references={"mean": mean, "optimum": optimum})


@pytest.mark.parametrize(
    ("losses", "mean", "optimum"),
    [
        ([30.0, 25.0], 20.0, 10.0),
        ([1e6, 36.0, 860.0], 20.0, 10.0),
        ([1.6e6 * 6e10**i for i in range(28)] + [float("inf")], 20.0, 10.0),  # a run without clipping, to its end
        ([float("nan")], 0.0, 0.0),
        ([0.0, 0.0], 0.0, 0.0),
        ([5.0, 50.0, 500.0] * 100, 0.0, 1e-31),  # a label that never changes
    ],
)
def test_any_losses_can_be_drawn(losses: list[float], mean: float, optimum: float) -> None:
    png = plot(losses, mean, optimum)
    width, height = struct.unpack(">II", png[16:24])
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert (width, height) == (1100, 858)


def test_the_same_losses_give_the_same_bytes() -> None:
    assert plot([30.0, 25.0]) == plot([30.0, 25.0])
    assert plot([30.0, 25.0]) != plot([30.0, 25.5])


@pytest.fixture
def page() -> str:
    picture = Picture(png=plot([30.0, 25.0]), alt=HOSTILE, caption=HOSTILE)
    report = Report(
        title=HOSTILE,
        summary=HOSTILE,
        alert=HOSTILE,
        tables=[Table(title=HOSTILE, header=["model", HOSTILE], rows=[[HOSTILE, "1.5"]] * 3)],
        pictures=[picture, picture],
        notes=[HOSTILE],
        settings={"data": "s3://bucket/" + "a-very-long-folder/" * 20, "label": None, HOSTILE: HOSTILE},
        footer=HOSTILE,
    )
    return to_html(report).decode()


class Tags(HTMLParser):
    """Collects the tags, the attributes and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_every_value_is_shown_and_none_is_obeyed(page: str) -> None:
    seen = Tags(page)
    assert "script" not in seen.tags
    assert seen.text.count(HOSTILE) == 15  # 2 titles, summary, alert, table 1+1+3, 2 captions, note, setting 2, footer
    assert "none" in seen.text


def test_nothing_is_outside_the_page(page: str) -> None:
    assert all(link.startswith("data:") for link in Tags(page).links)
    assert not re.search(r"@import|url\(", page)


def test_sections_without_content_are_left_out() -> None:
    page = to_html(Report(title="t", summary="s")).decode()
    assert Tags(page).tags.count("h2") == 1  # the settings
    assert "alert" not in re.sub(r"<style>.*</style>", "", page, flags=re.DOTALL)


@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium")
@pytest.mark.parametrize("width", [390, 1200])
def test_a_browser_draws_it_whole_and_fetches_nothing(page: str, width: int, tmp_path: Path) -> None:
    """Opened in a frame of a phone's or a desk's width, by a page whose title becomes what it saw."""
    (tmp_path / "report.html").write_text(page, encoding="utf-8")
    (tmp_path / "frame.html").write_text(
        f"""<!doctype html><title>pending</title><iframe style="width:{width}px;height:900px;border:0"></iframe><script>
        const frame = document.querySelector("iframe"), errors = [];
        frame.onload = () => {{
          const seen = frame.contentDocument, view = frame.contentWindow;
          const images = [...seen.images];
          const fetched = view.performance.getEntriesByType("resource").map(entry => entry.name);
          document.title = JSON.stringify({{
            drawn: images.filter(image => image.complete && image.naturalWidth > 0).length,
            wide: seen.documentElement.scrollWidth > view.innerWidth,
            outside: fetched.filter(name => !name.startsWith("data:")),
          }});
        }};
        frame.src = "report.html";
        </script>""",
        encoding="utf-8",
    )
    done = subprocess.run(
        [
            str(CHROMIUM),
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
            *("--disable-background-networking", "--disable-component-update", "--allow-file-access-from-files"),
            *("--enable-logging=stderr", "--log-level=0", "--virtual-time-budget=5000", "--window-size=1300,1000"),
            f"--user-data-dir={tmp_path / 'profile'}",
            "--dump-dom",
            (tmp_path / "frame.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    assert '<title>{"drawn":2,"wide":false,"outside":[]}</title>' in done.stdout
    assert "CONSOLE" not in done.stderr
