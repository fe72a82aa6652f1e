"""The log's lines about requests."""

from records import ACME, refusal, settlement

from gateway.telemetry import RequestLog


def test_a_request_names_tenant_key_and_space(capsys):
    RequestLog().on_settled(settlement())
    reported = capsys.readouterr().out
    for part in ("acme", "ci", "k3v9", "warming"):
        assert part in reported


def test_a_refusal_names_whom_it_refused_if_that_is_known(capsys):
    RequestLog().on_refused(refusal(429, "rate_limit_exceeded", ACME))
    reported = capsys.readouterr().out
    assert "acme" in reported
    assert "ci" in reported
    RequestLog().on_refused(refusal(401, "invalid_api_key"))
    assert "acme" not in capsys.readouterr().out
