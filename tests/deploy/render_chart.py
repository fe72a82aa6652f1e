"""Renders the chart with Helm's own library: values as JSON on standard input, manifests or Helm's refusal on output.

A program of its own, because the library brings Go's runtime with its signal handlers, which the tests' process is
better off without.
"""

import json
import sys

import helm_python


def main() -> None:
    path, release, namespace = sys.argv[1:]
    answer: dict[str, object] = {}
    with helm_python.Chart.load(path) as chart:
        values = json.load(sys.stdin)
        try:
            chart.validate_schema(values)
            answer["files"] = chart.render(values, name=release, namespace=namespace)
        except helm_python.HelmError as refused:
            answer["refused"] = str(refused)
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
