"""``prefix-gateway report``: as a table, as CSV, as JSON; and what it says when there is nothing, or no gateway."""

import argparse
import csv
import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from gateway.commands import report

ROW = {
    "tenant": "acme",
    "model": "m",
    "requests": 2,
    "prompt_tokens": 1_500_000,
    "cached_tokens": 500_000,
    "confirmed_tokens": 1_500_000,
    "completion_tokens": 7,
    "cost": 1.25,
    "saved": 0.5,
}
FOUND = {
    "month": "2026-11",
    "tenant": None,
    "currency": "EUR",
    "days": 2,
    "first_day": "2026-11-21",
    "last_day": "2026-11-22",
    "rows": [ROW, ROW | {"tenant": "=cmd()", "cost": None, "saved": None}],
    "total": {name: value for name, value in ROW.items() if name not in ("tenant", "model")},
}


@pytest.fixture
def admin() -> Iterator[dict]:
    """An admin port that answers what a test wants."""
    wanted = {"status": 200, "body": FOUND, "paths": []}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted["paths"].append(self.path)
            body = json.dumps(wanted["body"]).encode()
            self.send_response(wanted["status"])
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield wanted | {"wanted": wanted, "url": f"http://127.0.0.1:{server.server_port}"}
    server.shutdown()
    thread.join()
    server.server_close()


def run(*given: str) -> int:
    parser = argparse.ArgumentParser()
    report.add_arguments(parser)
    return report.run(parser.parse_args(given))


def test_a_table_with_a_total(admin, capsys):
    assert run("--url", admin["url"], "--month", "2026-11", "--tenant", "a&b", "--all-gateways") == 0

    shown = capsys.readouterr().out
    assert "acme" in shown
    assert "1,500,000" in shown
    assert "1.25" in shown
    assert "total" in shown
    assert admin["wanted"]["paths"] == ["/admin/api/report?month=2026-11&tenant=a%26b&gateways=all"]


def test_csv_can_be_read_by_a_spreadsheet_and_runs_nothing_there(admin, capsys):
    assert run("--url", admin["url"], "--csv") == 0

    first, second = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (first["month"], first["tenant"], first["cost"], first["currency"]) == ("2026-11", "acme", "1.25", "EUR")
    assert (second["tenant"], second["cost"]) == ("'=cmd()", "")


def test_json_is_the_answer(admin, capsys):
    assert run("--url", admin["url"], "--json") == 0
    assert json.loads(capsys.readouterr().out) == FOUND


def test_a_month_without_requests(admin, capsys):
    admin["wanted"]["body"] = FOUND | {"rows": [], "first_day": None, "last_day": None}
    assert run("--url", admin["url"]) == 0
    assert capsys.readouterr().out == "2026-11: no request was counted.\n"


def test_gateways_that_are_missing_are_said(admin, capsys):
    admin["wanted"]["body"] = FOUND | {"gateways": {"counted": 1, "missing": True}}
    assert run("--url", admin["url"], "--csv") == 0
    assert "Not all gateways are included" in capsys.readouterr().err


def test_no_gateway_and_a_refusal(admin, capsys):
    assert run("--url", "http://127.0.0.1:1") == 2
    assert "cannot reach the admin port" in capsys.readouterr().err
    admin["wanted"] |= {
        "status": 400,
        "body": {"error": {"message": "`month` must be a month such as 2026-11.", "param": "month", "code": "x"}},
    }
    assert run("--url", admin["url"], "--month", "november") == 1
    assert "such as 2026-11" in capsys.readouterr().err


def test_csv_and_json_together_are_refused(capsys):
    assert run("--csv", "--json") == 2
    assert "--csv and --json" in capsys.readouterr().err
