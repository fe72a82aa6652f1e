"""Gives every service of the compose stack the secrets it needs, and no others.

Each is taken from the environment (``.env``), or stays what it was, or is made. Runs once before the others start; a
folder below ``/secrets`` is one service's volume.
"""

import os
import secrets
import sys
from pathlib import Path
from urllib.parse import quote

from gateway.core.api_keys import hash_key

ROOT = Path("/secrets")
_SHORTEST = 16


def main() -> int:
    """Write the files. Returns the exit code: 1 if a secret in the environment cannot be used."""
    values = {}
    for name in ("GATEWAY_SECRET", "ADMIN_TOKEN", "METRICS_TOKEN", "REDIS_PASSWORD", "GRAFANA_PASSWORD"):
        value = os.environ.get(name) or _kept(name) or secrets.token_hex(32)
        if (
            len(value) < _SHORTEST
            or not value.isascii()
            or not value.isprintable()
            or any(c in value for c in " \"'\\")
        ):
            sys.stderr.write(
                f"{name} in .env: expected at least {_SHORTEST} visible ASCII characters without quotes, spaces and"
                " backslashes (openssl rand -hex 32 makes one; or leave it out, then one is made)\n"
            )
            return 1
        values[name] = value
        _write(f"kept/{name}", value)
    redis = values["REDIS_PASSWORD"]
    _write("gateway/secret", values["GATEWAY_SECRET"])
    _write("gateway/admin-token", values["ADMIN_TOKEN"])
    _write("gateway/metrics-token-hash", hash_key(values["METRICS_TOKEN"]))
    _write("gateway/state", f"redis://:{quote(redis, safe='')}@redis:6379/0")
    _write("redis/redis.conf", f'requirepass "{redis}"\n')
    _write("prometheus/token", values["METRICS_TOKEN"])
    _write("grafana/password", values["GRAFANA_PASSWORD"])
    return 0


def _kept(name: str) -> str:
    file = ROOT / "kept" / name
    return file.read_text() if file.is_file() else ""


def _write(name: str, text: str) -> None:
    """The services' users differ, so everybody may read; only one service has the volume."""
    file = ROOT / name
    if not file.is_file() or file.read_text() != text:
        file.write_text(text)
    file.chmod(0o444)


if __name__ == "__main__":
    sys.exit(main())
