"""uvicorn still has every private method and attribute that the gateway overrides or uses.

If one of these tests fails after an upgrade, read uvicorn's changes to the named method before the pin in
``pyproject.toml`` is moved: limits on heads, bodies and times would silently not hold any more.
"""

import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import uvicorn
from packaging.requirements import Requirement
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import Server, ServerState

from gateway.server.http_protocol import limited_protocol
from gateway.server.http_server import HttpServer

OVERRIDDEN = {
    "connection_made": ["self", "transport"],
    "connection_lost": ["self", "exc"],
    "data_received": ["self", "data"],
    "eof_received": ["self"],
    "on_message_begin": ["self"],
    "on_headers_complete": ["self"],
    "on_body": ["self", "body"],
    "on_message_complete": ["self"],
    "on_response_complete": ["self"],
    "send_400_response": ["self", "msg"],
    "_unsupported_upgrade_warning": ["self"],
}
OVERRIDDEN_OF_SERVER = {
    "startup": ["self", "sockets"],
    "on_tick": ["self", "counter"],
    "capture_signals": ["self"],
}
CALLED_BY = {
    "send_400_response": HttpToolsProtocol.data_received,
    "_unsupported_upgrade_warning": HttpToolsProtocol.data_received,
    "on_tick": Server.main_loop,
    "startup": Server._serve,
    "capture_signals": Server.serve,
}
ATTRIBUTES = {
    HttpToolsProtocol.__init__: "loop parser timeout_keep_alive server_state transport flow client pipeline scope"
    " headers cycle",
    HttpToolsProtocol.on_message_begin: "url headers scope",
    RequestResponseCycle.__init__: "disconnected keep_alive message_event response_started response_complete body"
    " more_body",
    FlowControl.__init__: "read_paused",
    ServerState.__init__: "connections tasks default_headers",
    uvicorn.Config.load: "encoded_headers",
}


def parameters(owner: type, name: str) -> list[str]:
    assert hasattr(owner, name), f"uvicorn has no {owner.__name__}.{name} any more"
    return list(inspect.signature(getattr(owner, name)).parameters)


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_overridden_method_of_the_protocol_exists(name):
    assert name in vars(limited_protocol(65536).__mro__[1]), f"the gateway does not override {name} any more"
    assert parameters(HttpToolsProtocol, name) == OVERRIDDEN[name], f"uvicorn changed {name}"


@pytest.mark.parametrize("name", OVERRIDDEN_OF_SERVER)
def test_overridden_method_of_the_server_exists(name):
    assert name in vars(HttpServer), f"the gateway does not override {name} any more"
    assert parameters(Server, name) == OVERRIDDEN_OF_SERVER[name], f"uvicorn changed {name}"


@pytest.mark.parametrize("name", CALLED_BY)
def test_uvicorn_still_calls_what_is_overridden(name):
    caller = inspect.unwrap(CALLED_BY[name])
    assert name in caller.__code__.co_names, f"{caller.__qualname__} does not call {name} any more"


@pytest.mark.parametrize("function", ATTRIBUTES, ids=lambda function: function.__qualname__)
def test_uvicorn_still_sets_the_attributes_that_are_used(function):
    missing = set(ATTRIBUTES[function].split()) - set(function.__code__.co_names)
    assert not missing, f"{function.__qualname__} does not set {missing} any more"


def test_list_of_overridden_methods_is_whole():
    own = vars(limited_protocol(65536).__mro__[1])
    inherited = {name for name in own if hasattr(HttpToolsProtocol, name) and inspect.isfunction(own[name])}
    assert inherited == set(OVERRIDDEN)


def test_only_tested_releases_are_allowed():
    """One minor release: uvicorn moves private methods between them."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (pin,) = [each for each in map(Requirement, project["dependencies"]) if each.name == "uvicorn"]
    assert version("uvicorn") in pin.specifier
    major, minor = (int(part) for part in version("uvicorn").split(".")[:2])
    for other in (f"{major}.{minor - 1}.0", f"{major}.{minor + 1}.0", f"{major + 1}.0.0"):
        assert other not in pin.specifier, f"uvicorn {other} was not tested"
