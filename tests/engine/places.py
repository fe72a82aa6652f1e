"""Files of this repository that the checks use."""

from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parents[2]
GOLDEN = _REPOSITORY / "tests" / "golden"
DEMO = _REPOSITORY / "gateway" / "tokenize" / "builtin" / "demo"
DEMO_TEMPLATE = DEMO / "chat_template.jinja"
