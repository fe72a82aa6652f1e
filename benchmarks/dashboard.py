"""How soon the dashboard is there, and what has to be sent for it.

    python -m benchmarks.dashboard [--loads 10] [--after 60] [--admin http://127.0.0.1:8081]

Loads the overview in Chromium, each time in a fresh browser profile (nothing cached), of a gateway that runs already
(`--admin`, without a token), else of a `prefix-gateway demo` that is started for it and left alone for
`--after` seconds.

* first paint: first contentful paint, as the browser measures it: the page's frame
* figures: until the headline figures stand there
* bytes: of all answers, as they were sent (compressed, with headers)
* heap: JavaScript's, after the load

Beside it stand the load average and how long the gateway took for the summary, which is part of the time until the
figures.
"""

import argparse
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
FIGURES = """
window.figuresAt = new Promise((tell) => {
  const look = () => document.querySelector("dl.figures dd") && (watch.disconnect(), tell(performance.now()));
  const watch = new MutationObserver(look);
  watch.observe(document, { childList: true, subtree: true });
});
"""
FIRST_PAINT = """
new Promise((tell) => new PerformanceObserver((list) => {
  const paint = list.getEntriesByName("first-contentful-paint")[0];
  if (paint) tell(paint.startTime);
}).observe({ type: "paint", buffered: true }))
"""


@dataclass(frozen=True, slots=True)
class Load:
    """One cold load. Times in milliseconds since the navigation began."""

    first_paint: float
    figures: float
    bytes: float
    requests: float
    heap_mib: float


def load(browser: Browser, url: str) -> Load:
    """Load a page as a new visitor."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    wire = context.new_cdp_session(page)
    sizes: list[float] = []
    wire.on("Network.loadingFinished", lambda reported: sizes.append(reported["encodedDataLength"]))
    wire.send("Network.enable")
    wire.send("Performance.enable")
    page.add_init_script(FIGURES)
    page.goto(url)
    figures = page.evaluate("window.figuresAt")
    first_paint = page.evaluate(FIRST_PAINT)
    page.wait_for_load_state("networkidle")
    metrics = {each["name"]: each["value"] for each in wire.send("Performance.getMetrics")["metrics"]}
    found = Load(first_paint, figures, sum(sizes), len(sizes), metrics["JSHeapUsedSize"] / 2**20)
    context.close()
    return found


@contextmanager
def demo(after: float) -> Iterator[str]:
    """The admin URL of a demo that has run for some seconds."""
    with tempfile.TemporaryDirectory() as folder:
        printed = Path(folder) / "printed"
        with printed.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "gateway", "demo", "--port", "0", "--admin-port", "0"],
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": folder},
            )
        try:
            while (found := re.search(r"admin +(http://[\d.:]+)/metrics", printed.read_text())) is None:
                if process.poll() is not None:
                    sys.exit(f"the demo did not start:\n{printed.read_text()}")
                time.sleep(0.1)
            time.sleep(after)
            yield found[1]
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


def measure(admin: str, loads: int) -> None:
    executable = shutil.which("chromium")
    if executable is None:
        sys.exit("chromium is missing: apt-get install chromium")
    began = time.perf_counter()
    with urllib.request.urlopen(f"{admin}/admin/api/summary") as answer:
        answer.read()
    summary = (time.perf_counter() - began) * 1000
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        found = [load(browser, f"{admin}/dashboard") for _ in range(loads)]
        version = browser.version
        browser.close()
    print(f"Chromium {version}; {loads} cold loads; load average {os.getloadavg()[0]:.1f}; summary {summary:.0f} ms\n")
    print(f"{'':16}{'median':>10}{'least':>10}{'most':>10}")
    for title, name, scale in (
        ("first paint, ms", "first_paint", 1.0),
        ("figures, ms", "figures", 1.0),
        ("sent, KB", "bytes", 1e-3),
        ("requests", "requests", 1.0),
        ("heap, MiB", "heap_mib", 1.0),
    ):
        values = [getattr(each, name) * scale for each in found]
        print(f"{title:16}{statistics.median(values):10.1f}{min(values):10.1f}{max(values):10.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", type=int, default=10)
    parser.add_argument("--after", type=float, default=60, metavar="SECONDS", help="of traffic before the first load")
    parser.add_argument("--admin", metavar="URL", help="of a gateway that runs already")
    args = parser.parse_args()
    if args.admin:
        measure(args.admin, args.loads)
        return
    with demo(args.after) as admin:
        measure(admin, args.loads)


if __name__ == "__main__":
    main()
