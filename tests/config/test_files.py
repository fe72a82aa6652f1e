"""What can be wrong with the file as a whole, and the files that ship."""

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from docs.generate.settings_page import page
from gateway.config.settings import ModelSettings, Settings, load_settings
from gateway.config.tenants_settings import TenantSettings
from gateway.core.errors import ConfigInvalid

ROOT = Path(__file__).parents[2]
SHIPPED = [ROOT / "config" / name for name in ("gateway.yaml", "minimal.yaml", "tenants.yaml")]


def problems_of(path):
    with pytest.raises(ConfigInvalid) as caught:
        load_settings(path, {})
    return caught.value.problems


def test_missing_file_is_named(tmp_path):
    file = tmp_path / "nowhere.yaml"
    assert problems_of(file) == [f"{file}: cannot be read: No such file or directory"]


def test_a_folder_is_not_a_file(tmp_path):
    assert problems_of(tmp_path) == [f"{tmp_path}: cannot be read: Is a directory"]


@pytest.mark.parametrize("content", ["", "# nothing but a comment\n", "---\n", "~\n"])
def test_empty_file_says_what_it_needs(mistakes, content):
    (problem,) = mistakes(content)
    assert problem.startswith("gateway.yaml:1: the file is empty, expected at least one model (models: [{id:")


@pytest.mark.parametrize("content", ["\n- a\n", "\njust text\n", "\n42\n"])
def test_something_else_than_a_mapping(mistakes, content):
    (problem,) = mistakes(content)
    assert problem.startswith("gateway.yaml:2: expected a mapping at the top of the file")


def test_not_utf8_names_the_line(mistakes):
    assert mistakes(b"log:\n  level: info # caf\xe9\n") == ["gateway.yaml:2: not UTF-8 text (save the file as UTF-8)"]


def test_utf8_with_byte_order_mark_is_accepted(load):
    assert load(b'\xef\xbb\xbfmodels: [{id: m, replicas: ["http://localhost:8000"]}]').models[0].id == "m"


@pytest.mark.parametrize(
    ("content", "line", "hint"),
    [
        ("log:\n\tlevel: info\n", 2, "indent with spaces, not tabs"),
        ("log:\n  level: info: debug\n", 2, "in quotes"),
        ("log:\n  level: [info\nmodels: 3\n", 3, "check indentation, brackets and quotes"),
        ("log: {level: ${LEVEL}}\n", 1, "put ${...} in quotes"),
        ("log:\n  level: *nowhere\n", 2, "undefined alias"),
        ("log: {}\n---\nlog: {}\n", 2, "one document in a file"),
        ("log:\n  level: \x07\n", 2, "control character"),
        ("[" * 5000, 1, "nested deeper than 64 levels (the most that is read)"),
        pytest.param(
            "a:\n" + "- b\n" * 100_000,
            99_999,
            "more than 100,000 values (the most that is read)",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_yaml_syntax_mistake_names_the_line(mistakes, content, line, hint):
    (problem,) = mistakes(content)
    assert problem.startswith(f"gateway.yaml:{line}: not valid YAML: ")
    assert hint in problem


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_file_loads(path):
    assert load_settings(path, {"GATEWAY_SECRET": "0123456789abcdef"} if path.name == "tenants.yaml" else {}).models


def test_the_example_shows_every_section_with_its_defaults():
    path = ROOT / "config" / "gateway.yaml"
    example = load_settings(path, {})
    defaults = Settings(models=example.models)
    text = path.read_text()
    for section in Settings.model_fields:
        shown, default = getattr(example, section), getattr(defaults, section)
        keys = getattr(type(shown), "model_fields", ())
        assert [key for key in keys if getattr(shown, key) != getattr(default, key)] == [], f"other defaults: {section}"
        assert shown == default
        assert re.search(rf"^(# )?{section}:(\n| )", text, re.MULTILINE), section
        inner = {"models": ModelSettings, "tenants": TenantSettings}.get(section) or type(shown)
        assert [
            key for key in getattr(inner, "model_fields", ()) if f"  {key}:" not in text and f"# {key}:" not in text
        ] == [], f"missing in {section}:"


def test_settings_page_is_up_to_date():
    written = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    assert written == page(), "run: python -m docs.generate.settings_page"


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_loaded_but_never_crashes(tmp_path, data):
    content = (ROOT / "config" / "gateway.yaml").read_bytes()
    start = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(start, min(len(content), start + 40)))
    junk = data.draw(st.one_of(st.binary(max_size=8), st.text("{}[]&*!:-#$'\"\n \t0x~", max_size=8).map(str.encode)))
    file = tmp_path / "damaged.yaml"
    file.write_bytes(content[:start] + junk + content[end:])
    problems = [f"{file}: none"]
    try:
        load_settings(file, {})
    except ConfigInvalid as invalid:
        problems = invalid.problems
    assert problems
    assert all(problem.startswith(f"{file}:") and "\n" not in problem for problem in problems)
