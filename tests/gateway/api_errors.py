"""The form of the gateway's errors."""

import httpx


def problem(answer: httpx.Response, status: int, code: str | None = None, param: str | None = None) -> str:
    """Check an error answer's form; returns its message."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-gateway-error"]
    (error,) = answer.json().values()
    assert error.keys() == {"message", "type", "param", "code"}
    assert isinstance(error["type"], str)
    if code is not None:
        assert error["code"] == code
    assert error["param"] == param
    assert error["message"]
    assert "Traceback" not in answer.text
    assert "line " not in error["message"] or "column" in error["message"]
    return error["message"]
