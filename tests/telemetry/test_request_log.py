"""The log's lines about requests."""

from records import ACME, refusal, settlement

from gateway.telemetry import RequestLog


def test_a_request_names_tenant_key_and_space(capsys):
    RequestLog().on_settled(settlement())
    told = capsys.readouterr().out
    for part in ("acme", "ci", "k3v9", "warming"):
        assert part in told


def test_a_refusal_names_whom_it_refused_if_that_is_known(capsys):
    RequestLog().on_refused(refusal(429, "rate_limit_exceeded", ACME))
    told = capsys.readouterr().out
    assert "acme" in told
    assert "ci" in told
    RequestLog().on_refused(refusal(401, "invalid_api_key"))
    assert "acme" not in capsys.readouterr().out
