"""The Prometheus text format."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exposition:
    """Collects the samples of one scrape."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def add(self, name: str, kind: str, text: str, value: float, **labels: object) -> None:
        """Add a sample. The first one of a name declares its type: ``kind`` is gauge or counter."""
        lines = self._families.setdefault(name, [f"# HELP {name} {text}", f"# TYPE {name} {kind}"])
        labelled = ",".join(f'{label}="{_escaped(str(value))}"' for label, value in labels.items())
        lines.append(f"{name}{{{labelled}}} {float(value)}" if labelled else f"{name} {float(value)}")

    def text(self) -> str:
        """The whole page."""
        return "".join(f"{line}\n" for lines in self._families.values() for line in lines)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
