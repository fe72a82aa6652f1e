"""Changes the code in one place at a time and counts the changes that the tests notice: ``make mutation``.

    python -m tests.mutation [--mutants 120] [--seed 1] [--jobs 2] [--results FILE] [--only N ...]

Mutants are drawn from `AREAS`, evenly over the areas. Each is written into a copy of the working tree, where the tests
of its package run until the first failure; a mutant that they do not notice then meets tests of whole requests. Results
are appended to a file, one JSON object a line, and a run that is started again goes on where it ended.

A mutant replaces one comparison, arithmetic or boolean operator, one number, one returned value, one condition, or
removes one statement. Log calls, error messages, docstrings, annotations and numbers above 16 (limits, whose neighbours
serve as well) are not changed. Some mutants change nothing that can be observed, so 100 % cannot be reached.
"""

import argparse
import ast
import copy
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

_SCENARIOS = ["tests/scenarios"]
_WHOLE_REQUESTS = [
    f"tests/gateway/test_{name}.py"
    for name in (
        "errors hostile_fields hostile_bodies bytes streaming faults resume disconnect deadlines slow_clients headers "
        "hostile_replicas large_bodies overload"
    ).split()
]

AREAS: dict[str, tuple[Sequence[str], Sequence[str], Sequence[str]]] = {
    "index": (["gateway/index"], ["tests/index"], _SCENARIOS),
    "ladder": (
        ["gateway/explain/ladder.py"],
        ["tests/explain/test_ladder.py", "tests/explain/test_explainer.py", "tests/explain/diff", "tests/explain"],
        _SCENARIOS,
    ),
    "routing": (["gateway/routing"], ["tests/routing"], _SCENARIOS),
    "order": (["gateway/kv_events/order.py"], ["tests/kv_events"], _SCENARIOS),
    "canon": (["gateway/canon"], ["tests/canon"], _SCENARIOS),
    "parse": (
        ["gateway/api/parse.py", "gateway/api/body_json.py"],
        _WHOLE_REQUESTS[:2],
        [*_SCENARIOS, *_WHOLE_REQUESTS[2:]],
    ),
    "proxy": (
        ["gateway/proxy", "gateway/fleet/breaker.py"],
        ["tests/proxy", "tests/fleet"],
        [*_SCENARIOS, *_WHOLE_REQUESTS],
    ),
}
"""By area: the code that is changed, the tests of its package, and the tests of whole requests that follow for a mutant
that those have not noticed. All of them as ``make test`` runs them."""

TIMEOUT_SECONDS = 900.0
"""A mutant that lets the tests run for longer is noticed: it loops or waits for ever."""

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change.

    Attributes:
        area: Key of `AREAS`.
        file: The changed file, relative to the root.
        line: Where, counted from 1.
        change: Kind of the change.
        before: Source of the changed expression or statement.
        after: What it becomes.
        source: The whole changed file.
    """

    area: str
    file: str
    line: int
    change: str
    before: str
    after: str
    source: str


def mutants_of(area: str, file: Path) -> Iterator[Mutant]:
    """All mutants of a file."""
    text = file.read_text()
    lines = text.encode().split(b"\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)

    def replaced(node: ast.expr | ast.stmt, by: str, change: str) -> Mutant:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        data = text.encode()
        before = data[begin:end].decode()
        source = (data[:begin] + by.encode() + data[end:]).decode()
        return Mutant(area, str(file.relative_to(ROOT)), node.lineno, change, before, by, source)

    for node in _code(ast.parse(text)):
        for by, change in _changes(node):
            yield replaced(node, by, change)


def _code(tree: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Statements and expressions that are executed and may be changed."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "bases", "keywords") and not isinstance(tree, ast.Call):
            continue
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST) or _is_spared(node):
                continue
            if isinstance(node, ast.expr | ast.stmt) and not isinstance(tree, ast.JoinedStr | ast.FormattedValue):
                yield node
            yield from _code(node)


def _is_spared(node: ast.AST) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Raise | ast.Assert | ast.JoinedStr):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True  # a docstring
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return True
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id in ("__slots__", "__all__", "_log", "T", "_T")
    call = node.value if isinstance(node, ast.Expr) else node
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id in ("_log", "log", "_logger")
    )


def _changes(node: ast.expr | ast.stmt) -> Iterator[tuple[str, str]]:
    """Replacements of a node, as source, with their kinds."""
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in _COMPARED:
            changed = copy.deepcopy(node)
            changed.ops = [_COMPARED[type(operator)]()]
            yield f"({ast.unparse(changed)})", "comparison"
        case ast.BinOp(op=operator) if type(operator) in _COMPUTED and not _is_text(node):
            other = ast.BinOp(node.left, _COMPUTED[type(operator)](), node.right)
            yield f"({ast.unparse(other)})", "arithmetic"
        case ast.BoolOp():
            other_op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
            yield f"({ast.unparse(ast.BoolOp(other_op, node.values))})", "boolean"
        case ast.UnaryOp(op=ast.Not()):
            yield f"bool({ast.unparse(node.operand)})", "not removed"
        case ast.Constant(value=bool(value)):
            yield str(not value), "constant"
        case ast.Constant(value=int(value) | float(value)) if abs(value) <= 16:
            yield repr(value + 1), "number"
        case ast.Return(value=ast.expr() as returned) if not isinstance(returned, ast.Constant):
            yield "return None", "result"
        case ast.IfExp():
            yield f"({ast.unparse(ast.IfExp(node.test, node.orelse, node.body))})", "branches"
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Continue() | ast.Break():
            yield "pass", "statement removed"


def _is_text(node: ast.BinOp) -> bool:
    def text(side: ast.expr) -> bool:
        return isinstance(side, ast.JoinedStr) or (
            isinstance(side, ast.Constant) and isinstance(side.value, str | bytes)
        )

    return text(node.left) or text(node.right)


def drawn(count: int, seed: int) -> list[Mutant]:
    """A sample of mutants, the same number of each area as far as it has so many."""
    chance = random.Random(seed)
    pools = []
    for area, (paths, _, _) in AREAS.items():
        files = [file for path in paths for file in _files(ROOT / path)]
        pool = [mutant for file in files for mutant in mutants_of(area, file)]
        chance.shuffle(pool)
        pools.append(pool)
    chosen: list[Mutant] = []
    while len(chosen) < count and any(pools):
        chosen += [pool.pop() for pool in pools if pool]
    return chosen[:count]


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def noticed_by(mutant: Mutant, tree: Path) -> str | None:
    """The first test that fails with a mutant, ``timeout``, or None where all pass."""
    file = tree / mutant.file
    original = file.read_bytes()
    file.write_text(mutant.source)
    try:
        _, package, whole_requests = AREAS[mutant.area]
        return _failing(package, tree) or _failing(whole_requests, tree)
    finally:
        file.write_bytes(original)


def _failing(paths: Sequence[str], tree: Path) -> str | None:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", *paths]
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        command, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            return "timeout"
    if process.returncode == 0:
        return None
    named = re.search(r"^(?:FAILED|ERROR) (tests/\S+)", output, re.MULTILINE)
    return named[1] if named else f"exit {process.returncode}"


def copied(folder: Path) -> Path:
    """A copy of the tracked files, with their present contents."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    for name in listed.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sample; exit status 1 if the tests fail without a mutant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "mutation.jsonl")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of mutants")
    parser.add_argument("--list", action="store_true", help="only print the mutants")
    options = parser.parse_args(arguments)
    sample = list(enumerate(drawn(options.mutants, options.seed)))
    if options.only is not None:
        sample = [each for each in sample if each[0] in options.only]
    if options.list:
        for number, mutant in sample:
            print(number, f"{mutant.file}:{mutant.line}", mutant.change, repr(mutant.before), "->", repr(mutant.after))
        return 0
    options.results.parent.mkdir(parents=True, exist_ok=True)
    known = _results(options.results)
    waiting = [each for each in sample if each[0] not in known]
    lock = threading.Lock()
    with tempfile.TemporaryDirectory() as folder:
        trees = [copied(Path(folder) / str(number)) for number in range(options.jobs)]

        def run(numbered: tuple[int, Mutant]) -> None:
            number, mutant = numbered
            with lock:
                tree = trees.pop()
            began = time.monotonic()
            test = noticed_by(mutant, tree)
            line = {"number": number, "noticed": test, "seconds": round(time.monotonic() - began, 1)}
            fields = {name: value for name, value in asdict(mutant).items() if name != "source"}
            with lock:
                trees.append(tree)
                with options.results.open("a") as file:
                    file.write(json.dumps(line | fields) + "\n")
            print(f"{number}: {mutant.file}:{mutant.line} {mutant.change}: {test or 'NOT NOTICED'}", flush=True)

        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(run, waiting))
    _report(_results(options.results), {number for number, _ in sample})
    return 0


def _results(file: Path) -> dict[int, dict[str, object]]:
    if not file.exists():
        return {}
    return {result["number"]: result for result in map(json.loads, file.read_text().splitlines())}


def _report(results: dict[int, dict[str, object]], numbers: set[int]) -> None:
    chosen = [result for number, result in sorted(results.items()) if number in numbers]
    for area in AREAS:
        of_area = [result for result in chosen if result["area"] == area]
        print(f"{area}: {sum(result['noticed'] is not None for result in of_area)} of {len(of_area)} noticed")
    noticed = sum(result["noticed"] is not None for result in chosen)
    print(f"{noticed} of {len(chosen)} noticed ({noticed / max(len(chosen), 1):.0%})")
    for result in chosen:
        if result["noticed"] is None:
            print(
                f"  {result['number']}: {result['file']}:{result['line']} {result['before']!r} -> {result['after']!r}"
            )


if __name__ == "__main__":
    sys.exit(main())
