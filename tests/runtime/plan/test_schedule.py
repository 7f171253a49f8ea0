from __future__ import annotations

import pytest

from heterocc.artifacts.errors import BundleManifestError
from heterocc.artifacts.manifest import Device, Partition, TensorSpec, Variant
from heterocc.runtime.plan.schedule import HOST, Call, Copy, Space, Wait, schedule
from tests.runtime import standin

CL = Space("opencl", 0)
CL1 = Space("opencl", 1)
STAYS = """\
copy v0 host -> opencl:0
call p0
call p1
copy v2 opencl:0 -> host
wait for copy v2 opencl:0 -> host"""
DEVICES = (standin.CPU, standin.OPENCL, Device(name="GPU.1", backend="opencl", index=1), standin.ORT)


def variant(
    values: str, inputs: str, outputs: str, parts: list[tuple[int, str, str]], constants: str = "", dynamic: str = ""
) -> Variant:
    """Values are letters; a partition is (device, inputs, outputs)."""
    return Variant(
        name="v",
        devices=DEVICES,
        values=tuple(TensorSpec(name=v, dtype="float32", shape=None if v in dynamic else (4,)) for v in values),
        inputs=tuple(values.index(v) for v in inputs),
        outputs=tuple(values.index(v) for v in outputs),
        constants={str(values.index(v)): 0 for v in constants},
        partitions=tuple(
            Partition(
                name=f"p{i}",
                device=device,
                kind="onnx" if device == 3 else "tvm",
                code="c",
                inputs=tuple(values.index(v) for v in reads),
                outputs=tuple(values.index(v) for v in writes),
                nodes=(f"n{i}",),
            )
            for i, (device, reads, writes) in enumerate(parts)
        ),
        plan="plan",
        summary="",
    )


def test_a_chain_on_the_cpu_has_no_copies() -> None:
    plan = schedule(variant("xab", "x", "b", [(0, "x", "a"), (0, "a", "b")]))
    assert plan.steps == (Call(0), Call(1))


def test_cpu_and_onnx_runtime_share_host_memory() -> None:
    plan = schedule(variant("xab", "x", "b", [(0, "x", "a"), (3, "a", "b")]))
    assert plan.steps == (Call(0), Call(1))


def test_a_value_is_sent_to_a_device_once_however_many_partitions_read_it() -> None:
    plan = schedule(variant("xabc", "x", "bc", [(0, "x", "a"), (1, "a", "b"), (1, "a", "c")]))
    assert [s for s in plan.steps if isinstance(s, Copy)] == [Copy(1, HOST, CL), Copy(2, CL, HOST), Copy(3, CL, HOST)]


def test_a_value_stays_on_its_device_between_partitions() -> None:
    plan = schedule(variant("xab", "x", "b", [(1, "x", "a"), (1, "a", "b")]))
    assert str(plan) == STAYS


def test_two_devices_meet_in_host_memory() -> None:
    plan = schedule(variant("xab", "x", "b", [(1, "x", "a"), (2, "a", "b")]))
    assert plan.steps[2:5] == (Copy(1, CL, HOST), Wait(Copy(1, CL, HOST)), Copy(1, HOST, CL1))


def test_a_value_that_comes_back_is_not_sent_back() -> None:
    plan = schedule(variant("xabc", "x", "c", [(0, "x", "a"), (1, "a", "b"), (0, "ab", "c")]))
    assert [s for s in plan.steps if isinstance(s, Copy)] == [Copy(1, HOST, CL), Copy(2, CL, HOST)]


def test_constants_are_resident_and_never_sent() -> None:
    plan = schedule(variant("xka", "x", "ak", [(1, "xk", "a")], constants="k"))
    assert Copy(1, HOST, CL) not in plan.steps
    assert set(plan.residents) == {(1, CL), (1, HOST)}
    assert all(b.value != 1 for b in plan.buffers)


def test_inputs_and_outputs_live_to_the_end_and_inner_values_to_their_last_reader() -> None:
    plan = schedule(variant("xabc", "x", "c", [(0, "x", "a"), (0, "a", "b"), (0, "b", "c")]))
    spans = {b.value: (b.lifetime.first, b.lifetime.last) for b in plan.buffers}
    assert spans == {0: (0, 4), 1: (1, 2), 2: (2, 3), 3: (3, 4)}


def test_an_output_that_is_an_input_needs_no_step() -> None:
    assert schedule(variant("x", "x", "x", [])).steps == ()


def test_a_value_without_a_static_shape_passes_between_onnx_partitions_as_an_object() -> None:
    plan = schedule(variant("xab", "x", "b", [(3, "x", "a"), (3, "a", "b")], dynamic="a"))
    assert plan.objects == {1}
    assert {b.value for b in plan.buffers} == {0, 2}


def test_a_partition_for_a_gpu_with_a_dynamic_value_is_refused() -> None:
    with pytest.raises(BundleManifestError, match="'a' has no static shape"):
        schedule(variant("xab", "x", "b", [(3, "x", "a"), (1, "a", "b")], dynamic="a"))


def test_reading_what_nobody_wrote_is_refused() -> None:
    with pytest.raises(BundleManifestError, match="partition 'p0' reads 'a' before"):
        schedule(variant("xab", "x", "b", [(0, "a", "b"), (0, "x", "a")]))


def test_an_output_that_nobody_writes_is_refused() -> None:
    with pytest.raises(BundleManifestError, match="the model's output list reads 'b'"):
        schedule(variant("xab", "x", "b", [(0, "x", "a")]))


@pytest.mark.parametrize(("parts", "constants"), [([(0, "x", "a"), (0, "x", "a")], ""), ([(0, "x", "a")], "a")])
def test_writing_a_value_twice_is_refused(parts: list[tuple[int, str, str]], constants: str) -> None:
    with pytest.raises(BundleManifestError, match="written twice"):
        schedule(variant("xa", "x", "a", parts, constants=constants))
