"""The client of commands that call a running gateway's admin port: address, token, and error messages.

``with AdminClient.from_arguments(args) as admin: admin.post("spaces/reset", {...})``. The token comes from a file or
from the environment, never from the command line, where every user of the machine could read it in the process list.
"""

import argparse
import os
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

TOKEN_VARIABLE = "GATEWAY_ADMIN_TOKEN"  # noqa: S105 - where the token stands, not the token
DEFAULT_URL = "http://127.0.0.1:8081"

_VISIBLE_ASCII = re.compile(r"[!-~]+")
_TOKEN_HINT = f" For this command, put it into a file (--token-file) or into {TOKEN_VARIABLE}."
_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 60.0


class AdminProblem(Exception):
    """A call of the admin API failed.

    Attributes:
        message: One line for the terminal.
        exit_code: The command's exit code.
    """

    exit_code = 1

    def __init__(self, message: str) -> None:
        self.message = "".join(letter if letter.isprintable() else " " for letter in message)
        super().__init__(self.message)


class AdminRefused(AdminProblem):
    """The gateway answered, and refused.

    Attributes:
        status: HTTP status.
        code: The error's code; None without one.
        param: The field at fault; None if the error names none.
    """

    def __init__(self, status: int, message: str, code: str | None, param: str | None) -> None:
        super().__init__(f"{param}: {message}" if param else message)
        self.status = status
        self.code = code
        self.param = param


class AdminNotReachable(AdminProblem):
    """No admin port answers at the URL, or URL or token are unusable."""

    exit_code = 2


def add_admin_arguments(parser: argparse.ArgumentParser) -> None:
    """The options ``--url``, ``--token-file`` and ``--json``."""
    # Or `--token SECRET` would be taken for `--token-file`, and the secret would be shown as a file that is not there.
    parser.allow_abbrev = False
    parser.add_argument("--url", default=DEFAULT_URL, metavar="URL", help=f"the admin port (default: {DEFAULT_URL})")
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"file with a token of the admin port, role operate (default: the variable {TOKEN_VARIABLE})",
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


class AdminClient:
    """One gateway's admin API. A context manager.

    Args:
        url: The admin port's base URL.
        token: Bearer token; None without one.
        transport: Replaces the network in tests.

    Raises:
        AdminNotReachable: it is no usable URL.
    """

    def __init__(self, url: str, token: str | None, transport: httpx.BaseTransport | None = None) -> None:
        self.url = _base_url(url)
        headers = {"authorization": f"Bearer {token}"} if token else {}
        # Ignore proxies and .netrc of the environment: they would get the token, or replace it.
        self._http = httpx.Client(
            base_url=f"{self.url}/admin/api/",
            headers=headers,
            timeout=httpx.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS),
            trust_env=False,
            verify=ssl.create_default_context(),
            transport=transport,
        )

    @classmethod
    def from_arguments(cls, args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Self:
        """A client from the arguments that ``add_admin_arguments`` declares.

        Raises:
            AdminNotReachable: the URL or the token cannot be used.
        """
        return cls(args.url, _token(args.token_file, environ))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def get(self, path: str) -> dict[str, Any]:
        """GET ``/admin/api/PATH``.

        Raises:
            AdminRefused: the gateway answered with an error.
            AdminNotReachable: nothing that is an admin port answered.
        """
        return self._ask("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """POST a JSON body to ``/admin/api/PATH``; errors as for ``get``."""
        return self._ask("POST", path, body)

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        try:
            answer = self._http.request(method, path, json=body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise AdminNotReachable(
                f"cannot reach the admin port at {self.url}: {_reason(error)}. Is the gateway running, and is --url"
                " its admin port (server.admin_host and server.admin_port)?"
            ) from error
        try:
            document = answer.json()
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise self._is_something_else(f"it answered {answer.status_code}, and not in JSON")
        if answer.is_success:
            return document
        problem = document.get("error")
        if not isinstance(problem, dict) or not isinstance(problem.get("message"), str):
            raise self._is_something_else(f"it answered {answer.status_code} without saying why")
        code, param = problem.get("code"), problem.get("param")
        if code == "unknown_path":
            raise self._is_something_else("it does not know this request")
        raise AdminRefused(
            answer.status_code,
            problem["message"] + (_TOKEN_HINT if answer.status_code == 401 else ""),
            code if isinstance(code, str) else None,
            param if isinstance(param, str) else None,
        )

    def _is_something_else(self, why: str) -> AdminNotReachable:
        return AdminNotReachable(
            f"what answers at {self.url} is no admin port of this release: {why}. Give --url the gateway's admin port"
            " (server.admin_host and server.admin_port)."
        )


def _base_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.port != 0 and bool(parts.hostname)
    except ValueError:
        usable = False
    if not usable or parts.scheme not in {"http", "https"} or not _VISIBLE_ASCII.fullmatch(url):
        raise AdminNotReachable(f"--url: expected an http or https URL, such as {DEFAULT_URL}")
    if parts.username is not None or parts.query or parts.fragment:
        raise AdminNotReachable("--url: expected scheme, host and port only (give a token with --token-file)")
    return url.rstrip("/")


def _token(file: Path | None, environ: Mapping[str, str]) -> str | None:
    if file is None:
        token, source = environ.get(TOKEN_VARIABLE, "").strip(), TOKEN_VARIABLE
        if not token:
            return None
    else:
        source = f"--token-file {file}"
        try:
            token = file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise AdminNotReachable(f"{source}: cannot be read: {why}") from error
    if not _VISIBLE_ASCII.fullmatch(token):
        raise AdminNotReachable(f"{source}: expected one token of visible ASCII characters, and nothing else")
    return token


def _reason(error: Exception) -> str:
    match error:
        case httpx.ConnectTimeout():
            return f"no connection within {_CONNECT_SECONDS:.0f} s"
        case httpx.TimeoutException():
            return f"no answer within {_ANSWER_SECONDS:.0f} s"
        case _:
            return str(error) or type(error).__name__
