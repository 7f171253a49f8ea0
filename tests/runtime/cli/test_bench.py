from __future__ import annotations

from heterocc.runtime.cli.bench import wait_until_idle


class FakeProcess:
    """A process that uses one core until `busy` seconds are over, and a clock that only sleeping moves."""

    def __init__(self, busy: float) -> None:
        self.busy, self.now = busy, 0.0

    def used(self) -> float:
        return min(self.now, self.busy)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self) -> float:
        wait_until_idle(self.used, lambda: self.now, self.sleep)
        return self.now


def test_a_turn_starts_when_the_threads_of_the_last_one_have_stopped() -> None:
    assert 0.05 < FakeProcess(busy=0.05).wait() < 0.07


def test_an_idle_process_is_waited_for_once() -> None:
    assert FakeProcess(busy=0.0).wait() < 0.01


def test_threads_that_never_stop_are_not_waited_for_long() -> None:
    assert 0.2 < FakeProcess(busy=1e9).wait() < 0.3
