"""The check of names and words finds what it is for."""

import pytest

from tests import conventions


@pytest.fixture
def found(tmp_path, monkeypatch):
    monkeypatch.setattr(conventions, "ROOT", tmp_path)

    def check(check, sources):
        files = []
        for name, source in sources.items():
            file = tmp_path / f"{name}.py"
            file.parent.mkdir(exist_ok=True)
            file.write_text(source)
            files.append(file)
        return list(check(files))

    return check


@pytest.mark.parametrize(
    "source",
    [
        "def heard_it(): ...",
        "class ToldTwice: ...",
        "_told_at = 1",
        '"""Nobody reads it."""',
        "x = 1  # as somebody does",
    ],
)
def test_a_discouraged_word_is_found_in_names_docstrings_and_comments(found, source):
    (problem,) = found(conventions.discouraged_in_code, {"module": source})
    assert problem.startswith("module.py:1: ")


def test_a_discouraged_word_in_a_files_name_is_found(found):
    assert len(found(conventions.discouraged_in_code, {"heard_events": ""})) == 1


@pytest.mark.parametrize("source", ['fields["told"]', "untold = 1", '"""The field ``told``."""'])
def test_values_of_the_api_and_other_words_are_not(found, source):
    assert found(conventions.discouraged_in_code, {"module": source}) == []


def test_a_message_with_a_discouraged_word_is_found(found):
    assert len(found(conventions.discouraged_words, {"module": 'raise ValueError("the replica was told")'})) == 1


def test_classes_and_files_that_exist_twice_are_found(found):
    classes = found(conventions.duplicate_classes, {"a/one": "class Twice: ...", "b/two": "class Twice: ..."})
    assert len(classes) == 1
    assert "Twice" in classes[0]
    files = found(conventions.duplicate_files, {"a/same": "", "b/same": "", "a/settings": "", "b/settings": ""})
    assert len(files) == 1
    assert "same.py" in files[0]
