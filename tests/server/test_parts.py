"""The parts of the test suite: every test is in one of them, and a flaky test fails the run."""

import os
import threading
import time
from pathlib import Path

import parts
import pytest
from parts import ALONE, PARTS, ROOT, UNITS, Level, Part, Result


def files_of(part: Part) -> set[Path]:
    def files(path: str) -> set[Path]:
        place = ROOT / path
        return {place} if place.is_file() else set(place.rglob("test_*.py"))

    return set().union(*map(files, part.paths)) - set().union(*map(files, part.but))


def test_every_file_is_in_one_part():
    found = [file for part in [*PARTS, ALONE] for file in files_of(part)]
    assert sorted(found) == sorted((ROOT / "tests").rglob("test_*.py"))


def test_unit_tests_are_part_of_all():
    assert all(unit in PARTS for unit in UNITS)


@pytest.mark.parametrize("again", [0, 1])
def test_what_passes_only_alone_is_named_and_fails(monkeypatch, capsys, again):
    def run(part: Part, *options: str, nice: int = 0) -> Result:
        rerun = "--last-failed" in options
        code = again if rerun else int(part.name == "pure")
        return Result(part, code, ["tests/x.py::test_x"] if code else [])

    monkeypatch.setattr(parts, "run", run)
    assert parts.main([Level.UNIT]) == 1
    printed = capsys.readouterr().out
    assert ("Flaky, and failures all the same:\n  tests/x.py::test_x" in printed) == (again == 0)
    assert "Failed: pure" in printed


def test_a_test_that_hangs_ends_its_part_and_is_shown(tmp_path, capsys):
    (tmp_path / "test_x.py").write_text("import time\n\n\ndef test_x():\n    time.sleep(300)\n")
    result = parts.run(Part("hangs", [str(tmp_path)]), "-o", "faulthandler_timeout=0.5")
    assert (result.code, result.failed) == (1, [])
    assert "in test_x" in capsys.readouterr().out


def test_all_well(monkeypatch, capsys):
    seen = []

    def run(part: Part, *options: str, nice: int = 0) -> Result:
        seen.append((part.name, options))
        return Result(part, os.EX_OK, [])

    monkeypatch.setattr(parts, "run", run)
    assert parts.main([Level.FAST]) == 0
    assert {name for name, _ in seen} == {part.name for part in [*PARTS, ALONE]}
    assert all("not slow and not long and not engine" in options for _, options in seen)
    seen.clear()
    assert parts.main([Level.DEEP, "pure"]) == 0
    ((name, options),) = seen
    assert name == "pure"
    assert "--hypothesis-profile=deep" in options
    assert "(hypothesis or long) and not engine" in options


def test_few_parts_run_at_once_and_those_that_measure_time_after_the_others(monkeypatch):
    lock, running, began = threading.Lock(), set(), []

    def run(part: Part, *options: str, nice: int = 0) -> Result:
        with lock:
            running.add(part.name)
            began.append((part.name, running - units, running & units, nice))
        time.sleep(0.02)
        with lock:
            running.remove(part.name)
        return Result(part, os.EX_OK, [])

    units = {unit.name for unit in UNITS}
    monkeypatch.setattr(parts, "run", run)
    assert parts.main([Level.ALL]) == 0
    assert max(len(others) for _, others, _, _ in began) == 4
    assert max(len(beside) for _, _, beside, _ in began) == 2
    assert [others for name, others, _, _ in began if name == "timed"] == [{"timed"}]
    assert [name for name, *_ in began if name not in units][-1] == "timed"
    assert all((nice > 0) == (name in units) for name, _, _, nice in began)
