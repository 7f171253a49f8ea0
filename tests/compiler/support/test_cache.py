"""The cache of trial answers: entries may be lost, but are never wrong and never fail a compile."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from pathlib import Path

import grimp
import pytest

from heterocc.compiler.files import records
from heterocc.compiler.files.records import MAX_PER_SHARD, cache_dir, toolchain_digest
from heterocc.compiler.support.cache import Answer, Answers, open_cache

KEY = hashlib.sha256(b"a node").hexdigest()


def only_file(root: Path) -> Path:
    (path,) = (p for p in root.rglob("*") if p.is_file())
    return path


@pytest.mark.parametrize("reason", [None, "no converter for Loop", "ä\n'quoted'"])
def test_an_answer_comes_back(tmp_path: Path, reason: str | None) -> None:
    Answers(tmp_path).put(KEY, Answer(reason))
    assert Answers(tmp_path).get(KEY) == Answer(reason)


def test_an_unknown_key_is_a_miss(tmp_path: Path) -> None:
    assert Answers(tmp_path / "none").get(KEY) is None


def test_a_file_damaged_at_any_byte_is_a_miss_or_the_answer(tmp_path: Path) -> None:
    store = Answers(tmp_path)
    store.put(KEY, Answer(None))
    path = only_file(tmp_path)
    good = path.read_bytes()
    for end in range(len(good)):
        path.write_bytes(good[:end])
        assert store.get(KEY) is None
    for index in range(len(good)):
        path.write_bytes(good[:index] + b"\x00" + good[index + 1 :])
        assert store.get(KEY) is None


@pytest.mark.parametrize(
    "record",
    [{"key": KEY}, {"key": "0" * 64, "reason": None}, {"key": KEY, "reason": 3}, [KEY], None, {"reason": None}],
)
def test_a_foreign_record_is_a_miss(tmp_path: Path, record: object) -> None:
    store = Answers(tmp_path)
    store.put(KEY, Answer("x"))
    only_file(tmp_path).write_text(json.dumps(record))
    assert store.get(KEY) is None


def test_an_oversized_file_is_a_miss(tmp_path: Path) -> None:
    store = Answers(tmp_path)
    store.put(KEY, Answer("x"))
    only_file(tmp_path).write_text(json.dumps({"key": KEY, "reason": "x" * 100_000}))
    assert store.get(KEY) is None


def test_a_long_reason_is_cut_and_still_read(tmp_path: Path) -> None:
    store = Answers(tmp_path)
    store.put(KEY, Answer("ä" * 10_000))
    assert store.get(KEY) == Answer("ä" * 500)


def test_a_shard_keeps_its_youngest_files(tmp_path: Path) -> None:
    import os

    store = Answers(tmp_path)
    keys = [f"00{i:062x}" for i in range(MAX_PER_SHARD + 3)]
    for age, key in enumerate(keys):
        store.put(key, Answer(None))
        path = next(p for p in tmp_path.rglob(f"{key}.json"))
        os.utime(path, ns=(age * 10**9, age * 10**9))
    assert len([p for p in tmp_path.rglob("*") if p.is_file()]) == MAX_PER_SHARD
    assert store.get(keys[0]) is None
    assert store.get(keys[-1]) == Answer(None)


def test_a_cache_that_cannot_be_written_says_so_and_goes_on(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    store = Answers(blocked)
    store.put(KEY, Answer(None))
    assert store.get(KEY) is None
    assert store.failure is not None
    assert "is not used: it is not a folder" in store.failure


def _write_many(root: Path, who: int) -> None:
    store = Answers(root)
    for round_ in range(50):
        for i in range(4):
            store.put(hashlib.sha256(bytes([i])).hexdigest(), Answer(f"{who}" * (1 + round_)))


def test_writers_at_once_leave_whole_files(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(tmp_path, who)) for who in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    for i in range(4):
        answer = Answers(tmp_path).get(hashlib.sha256(bytes([i])).hexdigest())
        assert answer is not None
        assert answer.reason in ("0" * 50, "1" * 50)
    assert not list(tmp_path.rglob("*.partial"))


def test_the_environment_says_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HETEROCC_CACHE", str(tmp_path / "mine"))
    assert cache_dir() == tmp_path / "mine"
    monkeypatch.delenv("HETEROCC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "heterocc"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "heterocc"


@pytest.mark.parametrize("off", ["off", "OFF"])
def test_off_means_no_cache(monkeypatch: pytest.MonkeyPatch, off: str) -> None:
    monkeypatch.setenv("HETEROCC_CACHE", off)
    store = open_cache()
    store.put(KEY, Answer(None))
    assert store.get(KEY) is None


@pytest.mark.parametrize("source", records.SOURCES)
def test_another_source_of_a_lowering_is_another_toolchain(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str
) -> None:
    for each in records.SOURCES:
        file = tmp_path / each if each.endswith(".py") else tmp_path / each / "inner" / "module.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("tile = 8\n")
    monkeypatch.setattr(records, "__file__", str(tmp_path / "compiler" / "files" / "records.py"))
    first = toolchain_digest.__wrapped__()
    assert toolchain_digest.__wrapped__() == first
    (changed,) = [tmp_path / source] if source.endswith(".py") else (tmp_path / source).rglob("*.py")
    changed.write_text("tile = 6\n")
    assert toolchain_digest.__wrapped__() != first


def test_every_module_that_a_trial_lowering_imports_is_in_the_digest() -> None:
    graph = grimp.build_graph("heterocc", cache_dir=None)
    found = {"heterocc.compiler.support.trial", "heterocc.compiler.lower"}
    found |= graph.find_descendants("heterocc.compiler.lower")
    waiting = list(found)
    while waiting:
        new = graph.find_modules_directly_imported_by(waiting.pop()) - found
        waiting += new
        found |= {m for m in new if m.startswith("heterocc.")}
    root = Path(records.__file__).parents[2]
    hashed = {root / name for source in records.SOURCES for name in records._python_files(root, source)}
    places = {m: root.joinpath(*m.split(".")[1:]) for m in found}
    missing = {m for m, place in places.items() if not {place.with_suffix(".py"), place / "__init__.py"} & hashed}
    assert not missing
    # The walk sees more than the first step: runtime modules come only through devices.
    assert "heterocc.runtime.machine.found" in found


def test_every_source_in_the_digest_exists() -> None:
    root = Path(records.__file__).parents[2]
    for source in records.SOURCES:
        assert (root / source).exists(), source
