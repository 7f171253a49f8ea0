"""Requests that run together: which do, that each gets its own rows or error, and models that take no batches."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from heterocc.artifacts.errors import FeedError
from heterocc.artifacts.manifest import Range
from heterocc.runtime import load
from heterocc.runtime.feeds import Array
from heterocc.runtime.serve.batch_check import batching_of, check_rows
from heterocc.runtime.serve.batches import Batching, Share, join, split
from heterocc.runtime.serve.errors import RequestError
from heterocc.runtime.serve.inference import Input, Request, Work, run_together, share_of
from heterocc.runtime.serve.models import Served, Tensor
from heterocc.runtime.serve.options import ServeOptions
from heterocc.runtime.serve.service import Service
from heterocc.runtime.serve.workers import Line, Workers
from heterocc.runtime.session import Session
from heterocc.runtime.sizes import Sizes
from tests.runtime import standin
from tests.runtime.serve.process import ServiceProcess
from tests.runtime.standin import Model, Op, Part

A, B = Share("a", 1), Share("b", 1)


def rows_model(rule: str = "mul", rows: int | str = "n") -> Model:
    """y = x * x, or another rule, for a dynamic number of rows of three."""
    operands = ("x", "x") if rule == "mul" else ("x",)
    return Model(
        values={"x": ("float32", (rows, 3)), "y": ("float32", (rows, 3))},
        inputs=("x",),
        outputs=("y",),
        parts=(Part(0, ("x",), ("y",), (Op("f", rule, operands, "y"),)),),
        bounds={"n": Range(min=1, max=6)} if rows == "n" else {},
    )


def write(path: Path, rule: str = "mul") -> Path:
    x = np.arange(3, dtype=np.float32).reshape(1, 3)
    return standin.write_bundle(path, rows_model(rule), golden={"x": x, "y": x * x})


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with load(write(tmp_path / "rows.hcb")) as session:
        yield session


def request(array: Array, name: str = "x", outputs: tuple[str, ...] | None = None) -> Request:
    return Request("", (Input(name, "FP32", array.shape, lambda datatype, shape: array, array.nbytes),), outputs, None)


def served(session: Session) -> Served:
    tensor = {name: Tensor(name, "FP32", (None, 3)) for name in ("x", "y")}
    line = Line("rows", 8)
    return Served("rows", "1", Path("rows.hcb"), (0, 0, 0, 0), session, line, {"x": tensor["x"]}, {"y": tensor["y"]})


@pytest.mark.parametrize(
    ("shares", "taken"),
    [
        ([A], [0]),
        ([A, A, A], [0, 1, 2]),
        ([A, B, A], [0, 2]),
        ([A, None, A], [0, 2]),
        ([None, A, A], [0]),
        ([Share("a", 3), Share("a", 2), A], [0, 2]),
        ([Share("a", 9), A], [0]),
    ],
)
def test_a_batch_is_the_first_request_and_those_of_its_kind_that_fit(
    shares: list[Share | None], taken: list[int]
) -> None:
    assert Batching(4).select(shares) == taken


@pytest.mark.parametrize(("waiting", "taken"), [(1, 1), (2, 2), (3, 2), (4, 4), (5, 4)])
def test_batches_have_a_number_of_rows_for_which_the_bundle_has_code(waiting: int, taken: int) -> None:
    assert len(Batching(8, (Sizes((1, 2, 4)),)).select([A] * waiting)) == taken


def test_requests_of_different_shapes_have_different_keys(session: Session) -> None:
    model = served(session)
    first, second = share_of(model, request(np.zeros((1, 3)))), share_of(model, request(np.zeros((2, 3))))
    assert first and second and first.key == second.key and (first.rows, second.rows) == (1, 2)
    other = share_of(model, request(np.zeros((1, 4))))
    assert other and other.key != first.key
    assert share_of(model, request(np.zeros(()))) is None and share_of(model, request(np.zeros((0, 3)))) is None
    assert share_of(model, Request("", (), None, None)) is None
    pair = (*request(np.zeros((1, 3))).inputs, *request(np.zeros((2, 3))).inputs)
    assert share_of(model, Request("", pair, None, None)) is None


def test_rows_return_to_the_requests_they_came_from() -> None:
    feeds = [{"x": np.full((rows, 2), rows)} for rows in (1, 3, 2)]
    parts = split([join(feeds)["x"]], [1, 3, 2])
    assert [part[0].tolist() for part in parts] == [feed["x"].tolist() for feed in feeds]
    with pytest.raises(ValueError, match=r"shape \[6, 2\] after a batch of 5 rows"):
        split([join(feeds)["x"]], [1, 3, 1])


def test_requests_run_together_and_each_error_reaches_its_own_request(session: Session) -> None:
    runs: list[int] = []
    x = np.arange(6, dtype=np.float32).reshape(2, 3)

    def malformed(datatype: str, shape: Sequence[int]) -> Array:
        raise RequestError("malformed")

    bad = Request("", (Input("x", "FP32", (2, 3), malformed, 24),), None, None)
    works = [
        Work(served(session), r, lambda outputs: (runs.append(1), outputs[0].array.tolist())[1])
        for r in (request(x), bad, request(x[:1] + 1), request(x, outputs=("q",)))
    ]
    outcomes = run_together(works)
    assert [result for result, _ in outcomes] == [(x * x).tolist(), None, ((x[:1] + 1) ** 2).tolist(), None]
    assert all(isinstance(outcomes[place][1], RequestError) for place in (1, 3))


def test_requests_of_a_batch_that_fails_run_alone(session: Session) -> None:
    """Seven rows are more than the code takes, of which four and three are not."""
    works = [
        Work(served(session), request(np.ones((rows, 3), np.float32)), lambda outputs: outputs[0].array.shape)
        for rows in (4, 3, 7)
    ]
    outcomes = run_together(works)
    assert [result for result, _ in outcomes] == [(4, 3), (3, 3), None]
    assert isinstance(outcomes[2][1], FeedError)


def test_a_worker_takes_the_requests_that_wait_and_no_more_than_fit() -> None:
    gate, batches = threading.Event(), []

    def together(works: list[int]) -> list[tuple[object, None]]:
        batches.append(len(works))
        return [(work, None) for work in works]

    async def scenario() -> None:
        workers, line = Workers(1, together), Line("m", 20, Batching(4))  # type: ignore[arg-type]
        try:
            first = workers.submit(line, gate.wait, A)
            jobs = [workers.submit(line, number, A) for number in range(9)]  # type: ignore[arg-type]
            jobs[2].result.cancel()  # type: ignore[union-attr]
            line.jobs.remove(jobs[2])
            gate.set()
            assert await workers.result(first)
            assert [await workers.result(job) for job in jobs if job is not jobs[2]] == [0, 1, 3, 4, 5, 6, 7, 8]
            assert [job.together for job in jobs if job is not jobs[2]] == [4] * 8
            assert line.running == 0 and not line.jobs
        finally:
            workers.close()

    asyncio.run(scenario())
    assert batches == [4, 4]


def test_a_model_whose_rows_are_independent_takes_batches(session: Session) -> None:
    batching = batching_of(session, 4)
    assert isinstance(batching, Batching) and batching.allows(4) and not batching.allows(5)
    assert check_rows(session, batching) is None


def test_a_model_whose_rows_depend_on_each_other_takes_none(tmp_path: Path) -> None:
    with load(write(tmp_path / "mixed.hcb", "softmax of columns")) as session:
        batching = batching_of(session, 4)
        assert isinstance(batching, Batching)
        assert check_rows(session, batching) == "rows of output 'y' depend on the other rows of their batch"


def test_models_without_a_batch_say_why(tmp_path: Path) -> None:
    with load(standin.write_bundle(tmp_path / "fixed.hcb", rows_model(rows=2))) as session:
        assert batching_of(session, 4) == "input 'x' has no dynamic first dimension"
    with load(standin.write_bundle(tmp_path / "unchecked.hcb", rows_model())) as session:
        batching = batching_of(session, 4)
        assert isinstance(batching, Batching)
        assert "no golden inputs" in str(check_rows(session, batching))


def test_requests_that_wait_for_a_service_run_together(tmp_path: Path) -> None:
    gate = threading.Event()

    async def scenario() -> list[tuple[object, int]]:
        service = Service(ServeOptions([write(tmp_path / "rows.hcb")], batch=4), 1)
        try:
            await service.start()
            line = service.models.find("rows").line

            async def ask(rows: int) -> tuple[object, int]:
                x = np.full((rows, 3), rows, np.float32)
                with service.memory.hold() as holding, service.call("http", "rows", "", holding) as call:
                    found = await service.run(call, request(x), lambda outputs: outputs[0].array.tolist(), None)
                assert found == (x * x).tolist()
                return found, call.job.together if call.job else 0

            blocked = service.workers.submit(line, gate.wait)
            asked = [asyncio.ensure_future(ask(rows)) for rows in (1, 2, 3, 1)]
            while len(line.jobs) < len(asked):
                await asyncio.sleep(0.001)
            gate.set()
            await service.workers.result(blocked)
            return await asyncio.gather(*asked)
        finally:
            gate.set()
            await service.close()

    together = [count for _, count in asyncio.run(asyncio.wait_for(scenario(), 60))]
    assert together == [3, 3, 1, 3], "one, two and one row fit into a batch of four; three rows do not"


def test_a_service_says_which_models_take_no_batches_and_which_sizes_fit(tmp_path: Path) -> None:
    write(tmp_path / "rows.hcb")
    write(tmp_path / "mixed.hcb", "softmax of columns")
    with ServiceProcess(tmp_path, "--workers", 1, "--batch", 4) as service:
        assert [(r["model"], r["reason"]) for r in service.log if r["message"] == "requests run alone"] == [
            ("mixed", "rows of output 'y' depend on the other rows of their batch")
        ]
        with http_client.InferenceServerClient(service.http) as client:
            x = np.arange(6, dtype=np.float32).reshape(2, 3)
            given = http_client.InferInput("x", [2, 3], "FP32").set_data_from_numpy(x)
            assert client.infer("rows", [given]).as_numpy("y").tolist() == (x * x).tolist()
            assert service.metric('heterocc_request_batch_count{model="rows",version="1"}') == 1
            assert client.get_model_metadata("rows")["inputs"][0]["shape"] == [-1, 3]
            with pytest.raises(
                InferenceServerException, match="HC110: dimension 'n' of input 'x' must be 1 to 6, got 7"
            ):
                wrong = http_client.InferInput("x", [7, 3], "FP32")
                client.infer("rows", [wrong.set_data_from_numpy(np.zeros((7, 3), np.float32))])
        assert service.end() == 0
