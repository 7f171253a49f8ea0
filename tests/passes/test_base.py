"""Pipelines as text."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterocc.artifacts.errors import PipelineSpecError, UsageError
from heterocc.passes.base import PASSES, Pass, parse_pipeline, policy_pipeline
from heterocc.passes.greedy import Greedy
from heterocc.passes.manual import Manual
from heterocc.passes.merge import Merge
from heterocc.passes.mincut import MinCut

pipelines = st.lists(
    st.one_of(
        st.just(Greedy()),
        st.just(Manual()),
        st.builds(Merge, max_nodes=st.none() | st.integers(1, 10**6), islands=st.booleans()),
    ),
    min_size=1,
    max_size=5,
)


@given(pipelines)
def test_every_pipeline_round_trips_through_its_text(passes: list[Pass]) -> None:
    assert parse_pipeline(",".join(map(repr, passes))) == tuple(passes)


def test_a_pass_shows_only_options_that_are_not_the_default() -> None:
    assert repr(Merge()) == "merge"
    assert repr(Merge(max_nodes=64)) == "merge{max-nodes=64}"
    assert repr(Merge(max_nodes=64, islands=False)) == "merge{max-nodes=64,islands=off}"


def test_spaces_do_not_matter() -> None:
    spec = " greedy , merge { max-nodes = 64 , islands = off } "
    assert parse_pipeline(spec) == (Greedy(), Merge(max_nodes=64, islands=False))


def test_an_option_may_be_set_to_its_default() -> None:
    assert parse_pipeline("merge{max-nodes=none,islands=on},greedy{}") == (Merge(), Greedy())


@pytest.mark.parametrize(
    ("spec", "message", "hint"),
    [
        ("greedy,mrege", "there is no pass 'mrege'", "did you mean 'merge'? passes: greedy, manual, merge{max-nodes"),
        ("merge{max=4}", "pass 'merge' has no option 'max'", "options of 'merge': max-nodes, islands"),
        ("greedy{x=1}", "pass 'greedy' has no option 'x'", "'greedy' has no options"),
        ("merge{max-nodes=many}", "option 'max-nodes' of pass 'merge' cannot be 'many'", "give a number or none"),
        ("merge{max-nodes=1.5}", "option 'max-nodes' of pass 'merge' cannot be '1.5'", "give a number or none"),
        ("merge{islands=yes}", "option 'islands' of pass 'merge' cannot be 'yes'", "give on or off"),
        ("merge{max-nodes=0}", "pass 'merge' does not accept {max-nodes=0}", "max-nodes must be at least 1"),
        ("merge{islands}", "cannot read the option 'islands' of pass 'merge'", "key=value"),
        ("merge{islands=on,islands=off}", "option 'islands' of pass 'merge' is given twice", None),
        ("merge{islands=on", "cannot read the pipeline from 'merge{islands=on' on", "NAME{option=value"),
        ("greedy merge", "cannot read the pipeline from 'greedy merge' on", "separated by commas"),
        ("greedy,", "a pass name is missing", "separated by commas"),
        ("", "a pass name is missing", "separated by commas"),
        ("greedy;merge", "cannot read the pipeline", "separated by commas"),
    ],
)
def test_a_bad_spec_is_one_clear_error(spec: str, message: str, hint: str | None) -> None:
    with pytest.raises(PipelineSpecError) as caught:
        parse_pipeline(spec)
    assert message in caught.value.message
    assert (caught.value.hint is None) if hint is None else (hint in str(caught.value.hint))
    assert caught.value.where is not None
    assert "--passes" in caught.value.command_text() and "--" not in caught.value.where


def test_policies_name_pipelines() -> None:
    assert policy_pipeline("greedy") == (Greedy(), Manual())
    assert policy_pipeline("merge") == (Greedy(), Manual(), Merge())
    assert policy_pipeline("optimal") == (Manual(), MinCut())


def test_an_unknown_policy_lists_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        policy_pipeline("best")
    assert caught.value.hint == "policies: greedy, merge, optimal, measured"


@pytest.mark.parametrize("name", PASSES)
def test_every_registered_pass_is_a_frozen_dataclass_under_its_own_name(name: str) -> None:
    kind = PASSES[name]
    assert kind.name == name
    pass_ = kind()
    with pytest.raises(AttributeError):
        object.__setattr__(pass_, "anything", 1)
    for field in dataclasses.fields(pass_):  # type: ignore[arg-type]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(pass_, field.name, None)
    assert hash(pass_) == hash(kind())
