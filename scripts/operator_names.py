"""Measure in how many files of the compiler an operator is named: `python -m scripts.operator_names`.

A file names an operator in a string that consists of names alone, such as "Slice" or "Exp Log Sqrt"; docstrings,
messages and comments do not count, nor do nodes that are written as text (importer/draft/written.py). The records of
operators (compiler/operators/) are to be the one place for facts.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

COMPILER = Path(__file__).parents[1] / "compiler"
_NAMES = re.compile(r"[A-Z][A-Za-z0-9]*(\s+[A-Z][A-Za-z0-9]*)*")


def known_operators() -> frozenset[str]:
    """The operators of ONNX, of `ai.onnx.ml` and of ONNX Runtime's own domain."""
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

    return frozenset(s.name for s in get_all_operator_schema() if s.domain in ("", "ai.onnx.ml", "com.microsoft"))


def _body(node: ast.AST) -> list[ast.AST]:
    """The statements of a node of which the first may be a docstring."""
    body = getattr(node, "body", None)
    return body if isinstance(body, list) else []


def strings_of(tree: ast.AST) -> Iterator[str]:
    """The strings of a module that are not docstrings."""
    documentation = {id(line.value) for node in ast.walk(tree) for line in _body(node) if isinstance(line, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.value


def files_naming(root: Path = COMPILER) -> Mapping[str, frozenset[str]]:
    """The files that name each operator that is named."""
    operators, found = known_operators(), dict[str, set[str]]()
    for path in sorted(root.rglob("*.py")):
        for text in strings_of(ast.parse(path.read_text())):
            for name in text.split() if _NAMES.fullmatch(text.strip()) else ():
                if name in operators:
                    found.setdefault(name, set()).add(str(path.relative_to(root)))
    return {name: frozenset(files) for name, files in found.items()}


def mean(files: Mapping[str, frozenset[str]]) -> float:
    """The mean number of files that name an operator."""
    return sum(map(len, files.values())) / len(files)


def main() -> None:
    """Print the mean, the operators that are named in most files, and the files that name most operators."""
    found = files_naming(Path(sys.argv[1]) if len(sys.argv) > 1 else COMPILER)
    by_file = Counter(file for files in found.values() for file in files)
    print(f"{len(found)} operators, named in {mean(found):.2f} files on average, {len(by_file)} files in all")
    most = sorted(found, key=lambda name: (-len(found[name]), name))[:20]
    print("in most files:", ", ".join(f"{name} {len(found[name])}" for name in most))
    for file, count in by_file.most_common(30):
        print(f"{count:5d}  {file}")


if __name__ == "__main__":
    main()
