#!/opt/prefix-gateway/bin/python -I
"""Whether a server in this container answers: ``healthcheck [PORT [PATH]]``, exit code 0 or 1."""

import http.client
import sys

_SECONDS = 4


def main() -> int:
    """Ask once. Not by urllib, which would go through a proxy that the environment names."""
    port, path = [*sys.argv[1:], *["8080", "/healthz"][len(sys.argv) - 1 :]]
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=_SECONDS)
    try:
        connection.request("GET", path)
        return int(connection.getresponse().status != http.client.OK)
    except OSError:
        return 1


if __name__ == "__main__":
    sys.exit(main())
