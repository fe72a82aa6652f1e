"""What is to be measured: URLs, models and the API key, checked before anything is sent."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from gateway.engines.model_list import parse_models
from gateway.evaluation.bad_input import BadInput
from gateway.evaluation.measurement.stream_timing import StreamTimer, one_line
from gateway.http_client import NotConnected, Origin, TransportError

KEY_VARIABLE = "GATEWAY_API_KEY"

_VISIBLE_ASCII = re.compile(r"[!-~]+")
_SHOWN_MODELS = 10


def base_url(url: str) -> str:
    """A URL as it is used: without ``/v1`` and trailing slashes.

    Raises:
        BadInput: it is no http or https URL with a host, or has more than that and a path.
    """
    try:
        parts = urlsplit(url)
        usable = parts.port != 0 and bool(parts.hostname)
    except ValueError:
        usable = False
    if not usable or parts.scheme not in {"http", "https"} or not _VISIBLE_ASCII.fullmatch(url):
        # What stands in front of an @ may be a password.
        raise BadInput(f"{one_line(url.rpartition('@')[2])}: not a URL: expected one such as http://127.0.0.1:8080")
    if parts.username is not None or parts.query or parts.fragment:
        raise BadInput(
            f"{parts.scheme}://{parts.hostname}: give scheme, host, port and path only"
            f" (a key goes into --key-file or {KEY_VARIABLE})"
        )
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def read_key(file: Path | None, environ: Mapping[str, str] = os.environ) -> str:
    """The API key from a file, else from the environment; empty for none.

    Raises:
        BadInput: the file cannot be read, or what it holds is no key. The key itself is never part of the message.
    """
    source = KEY_VARIABLE if file is None else f"--key-file {file}"
    if file is None:
        key = environ.get(KEY_VARIABLE, "").strip()
        if not key:
            return ""
    else:
        try:
            key = file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise BadInput(f"{source}: cannot be read: {why}") from None
    if not _VISIBLE_ASCII.fullmatch(key):
        raise BadInput(f"{source}: expected one key of visible ASCII characters, and nothing else")
    return key


async def served_models(timer: StreamTimer, url: str, key: str = "") -> Sequence[str] | None:
    """Ids of the models at a URL; None if it does not list any, as some proxies.

    Args:
        timer: Sends the request.
        url: As ``base_url`` returns it.
        key: The API key, to be left out of messages.

    Raises:
        BadInput: nothing answers there, it refuses the key, or it is no server of this API.
    """
    try:
        status, body = await timer.fetch_models(Origin.parse(url))
    except NotConnected as error:
        why = one_line(str(error), key)
        raise BadInput(f"{url}: cannot be reached ({why}): is the server running, and is this its address?") from None
    except TransportError as error:
        why = one_line(str(error), key)
        raise BadInput(f"{url}: no answer to GET /v1/models ({why}): is this an OpenAI-compatible server?") from None
    if status in {401, 403}:
        raise BadInput(refused(url, status, with_key=bool(key)))
    if status != 200:
        return None
    try:
        return parse_models(body, "").ids
    except ValueError:
        raise BadInput(
            f"{url}: answered GET /v1/models with something else than a list of models: is this an OpenAI-compatible"
            " server?"
        ) from None


def refused(url: str, status: int, *, with_key: bool) -> str:
    """The sentence for a server that wants a key, or another one."""
    if with_key:
        return (
            f"{url}: refuses the API key (status {status}): give one that it accepts with --key-file or {KEY_VARIABLE}"
        )
    return f"{url}: asks for an API key (status {status}): give it with --key-file or {KEY_VARIABLE}"


def chosen_model(url: str, served: Sequence[str] | None, wanted: str | None) -> str:
    """The model to measure at a URL.

    Args:
        url: The URL, for messages.
        served: Its models; None if they are not known.
        wanted: The one asked for; None for the only one there is.

    Raises:
        BadInput: there is no such model, or none was named and there is not exactly one.
    """
    if served is None:
        if wanted is None:
            raise BadInput(f"{url}: does not list its models (GET /v1/models): name one with --model")
        return wanted
    known = ", ".join(map(one_line, served[:_SHOWN_MODELS])) + (" and others" if len(served) > _SHOWN_MODELS else "")
    if not served:
        raise BadInput(f"{url}: serves no model: GET /v1/models answers an empty list")
    if wanted is None:
        if len(served) > 1:
            raise BadInput(
                f"{url}: serves several models: choose with --model one of {known}, or compare with --models"
            )
        return served[0]
    if wanted not in served:
        raise BadInput(f"{url}: serves no model {wanted!r}: choose with --model one of {known}")
    return wanted


def check_warm_up(url: str, status: int, said: str, *, with_key: bool, is_plain: bool) -> None:
    """Refuse to measure where the first request shows that every other one will be refused for the same reason.

    Failures of a server (5xx, a broken connection, 429) are no such reason: their rate is part of what is measured.

    Args:
        url: The server.
        status: Status of a request that failed.
        said: Its error.
        with_key: Whether an API key was sent.
        is_plain: Whether the request had no other fields than those of OpenAI's API.

    Raises:
        BadInput: the request itself is at fault.
    """
    if status in {401, 403}:
        raise BadInput(refused(url, status, with_key=with_key))
    if 400 <= status < 500 and status not in {408, 425, 429}:
        fix = ": --plain leaves out what is not part of OpenAI's API" if status in {400, 422} and not is_plain else ""
        raise BadInput(f"{url}: refuses the requests ({said}){fix}")
