"""What a person sees in MLflow's UI, in a real browser. ZEXP_SCREENSHOTS=1 renews the pictures of docs/mlflow-ui.md."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from e2e.conftest import Cli

from zexp.tracking import Store
from zexp.tracking.recorder import NOTES
from zexp.tracking.views import publish

from .conftest import daemon, free_port, listens, runs_of, sweep_of, wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

PICTURES = Path(__file__).parents[2] / "docs" / "mlflow"
SECONDS = 1000
SWEEP = (
    "run",
    "-m",
    "experiment=munmap_24g",
    "machine=laptop",
    "workload.total_size=4MiB",
    "policy/accounting=eager,lazy",
)
METRICS = ("time/total_ms", "time/cpu_ns_per_page", "accounting/self_pct")


class Ui:
    """`zexp ui` on a sweep, and a page that remembers whom it asked."""

    def __init__(self, address: str, page: Page, links: dict[str, str]) -> None:
        self.address, self.page, self.links = address, page, links
        self.asked: set[str] = set()
        page.on("request", lambda request: self.asked.add(urlsplit(request.url).hostname or ""))

    def open(self, label: str) -> Page:
        self.page.goto("about:blank")
        self.page.goto(f"{self.address}{self.links[label]}")
        return self.page

    def picture(self, name: str) -> None:
        if os.environ.get("ZEXP_SCREENSHOTS"):
            PICTURES.mkdir(parents=True, exist_ok=True)
            path = PICTURES / f"{name}.png"
            self.page.wait_for_timeout(SECONDS)  # for animations
            self.page.screenshot(path=path)
            assert path.stat().st_size < 200_000


@dataclass(frozen=True)
class Served:
    """A store, the UI on it, and the views of its first sweep."""

    cli: Cli
    address: str
    links: dict[str, str]


@pytest.fixture(scope="module")
def served(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The UI on a sweep of two policies and five numbers of processes."""
    folder = tmp_path_factory.mktemp("ui")
    (folder / "cwd").mkdir()
    cli = Cli(folder / "store", folder / "cwd")
    sweep = sweep_of(cli.ok(*SWEEP, "workload.processes=1,2,3,4,6"))
    store = Store.open(cli.store)
    tags = store.client.get_experiment("1").tags
    links = publish(store, sweep)
    assert all(link in tags[NOTES] for link in links.values())
    assert store.client.get_experiment("1").tags == tags, "doing it again changes nothing"
    assert len(runs_of(cli.store, sweep)) == 10
    port = free_port()
    with daemon(cli.command("ui", "--port", str(port)), folder / "ui.log", env=cli.environment(), cwd=cli.cwd) as child:
        wait_for(lambda: listens(port), "zexp ui", 120)
        yield Served(cli, f"http://127.0.0.1:{port}/", links)
        child.send_signal(signal.SIGTERM)
        child.wait(30)


@pytest.fixture
def ui(served: Served, chromium: Browser) -> Iterator[Ui]:
    context = chromium.new_context(viewport={"width": 1600, "height": 900})
    # What its x leaves behind: MLflow's assistant takes a quarter of the page at the first visit.
    ui = Ui(served.address, context.new_page(), served.links)
    ui.open("runs")
    ui.page.get_by_text("MLflow Assistant").wait_for()
    ui.page.get_by_role("button", name="Close").last.click()
    yield ui
    assert ui.asked <= {"127.0.0.1", ""}
    context.close()


def test_experiment(ui: Ui) -> None:
    """What opens without any link: the description leads on."""
    ui.page.goto("about:blank")
    ui.page.goto(f"{ui.address}#/experiments/1/runs?workflowType=machine_learning")
    ui.page.get_by_text("Latest sweep:").wait_for()
    ui.page.get_by_role("link", name="lazy processes=6").wait_for()
    ui.picture("experiment")
    with ui.page.context.expect_page() as opened:
        ui.page.get_by_role("link", name="what was found").click()
    first, ui.page = ui.page, opened.value
    ui.page.frame_locator("iframe").get_by_role("heading", name="lazy against eager").wait_for()
    ui.page.get_by_text("Path: file:").evaluate("element => { element.textContent = '' }")  # of this machine
    ui.picture("summary")
    ui.page = first


def test_runs_table(ui: Ui) -> None:
    page = ui.open("runs")
    for policy in ("eager", "lazy"):
        for processes in (1, 2, 3, 4, 6):
            page.get_by_role("link", name=f"{policy} processes={processes}").wait_for()
    for column in (*METRICS, "policy.accounting.name", "workload.processes"):
        page.get_by_role("columnheader").filter(has_text=column).last.wait_for()
    page.get_by_text("10 matching runs").wait_for()
    ui.picture("runs")


def test_charts(ui: Ui) -> None:
    page = ui.open("charts")
    page.get_by_text("By workload.processes").wait_for()
    page.locator(".js-plotly-plot .scatterlayer .point").first.wait_for()
    plot = page.locator(".js-plotly-plot").first
    points = plot.locator(".scatterlayer .point")
    assert points.count() == 10
    assert plot.locator("text.xtitle").text_content() == "workload.processes"
    assert plot.locator("text.ytitle").text_content() == METRICS[0]
    colors = points.evaluate_all("points => points.map(point => getComputedStyle(point).fill)")
    assert len(set(colors)) == 2  # one for each policy
    ui.picture("charts")


def test_profiles_side_by_side(ui: Ui) -> None:
    page = ui.open("tables")
    page.get_by_text("functions.json").wait_for()
    page.get_by_text("zs_zpool_total_size").wait_for()
    for choice, value in (("Table:", "functions.json"), ("Group by:", "symbol"), ("Compare:", "self_pct")):
        assert page.get_by_text(choice).locator("..").text_content() == f"{choice}{value}"
    for policy in ("eager", "lazy"):
        assert page.get_by_role("link", name=f"{policy} processes=6").count() == 2  # in the list, and above its column
    assert page.get_by_text(re.compile(r"^\d+\.\d+$")).count() >= 4
    ui.picture("tables")


def test_compare(ui: Ui) -> None:
    page = ui.open("compare")
    page.get_by_text("Comparing 2 Runs from 1 Experiment").wait_for()
    for policy in ("eager", "lazy"):
        page.get_by_text(f"{policy} processes=6").first.wait_for()
    metric = page.get_by_text("accounting/self_pct", exact=True).last
    metric.scroll_into_view_if_needed()
    assert metric.is_visible()
    page.get_by_text("functions.md").click()
    # the profiles as tables, side by side, each in a frame of its own
    page.get_by_text("zs_zpool_total_size").first.scroll_into_view_if_needed()
    ui.picture("compare")


def test_points_of_an_earlier_sweep(ui: Ui, served: Served) -> None:
    """A sweep that took some of its points from another shows those as well, and what people wrote stays."""
    store = Store.open(served.cli.store)
    note = store.client.get_experiment("1").tags[NOTES]
    store.client.set_experiment_tag("1", NOTES, f"{note}\n\nSeen on the old laptop, too.")
    sweep = sweep_of(served.cli.ok(*SWEEP, "workload.processes=1,2,8"))
    runs = runs_of(served.cli.store, sweep)
    assert sorted(run.tags["sweep"] == sweep for run in runs) == [False] * 4 + [True] * 2
    ui.links = publish(store, sweep)
    note = store.client.get_experiment("1").tags[NOTES]
    assert ui.links["runs"] in note
    assert note.endswith("\n---\n\nSeen on the old laptop, too.")
    page = ui.open("runs")
    for run in runs:
        page.get_by_role("link", name=run.name).wait_for()
    page.get_by_text("6 matching runs").wait_for()
    page = ui.open("tables")
    for policy in ("eager", "lazy"):
        page.get_by_role("link", name=f"{policy} processes=8").last.wait_for()
    page.get_by_text("2 matching runs").wait_for()
