"""A second thread: order, what goes wrong there, and who gets how many of torch's threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from quintain.compiled.second_thread import SecondThread


@pytest.fixture(autouse=True)
def _threads_as_they_were() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("num_threads", "helps"), [(1, False), (2, True), (4, True)])
def test_work_is_done_in_order_beside_the_caller_where_there_are_threads(num_threads: int, helps: bool) -> None:
    torch.set_num_threads(num_threads)
    second, done = SecondThread(), []
    is_free = threading.Event()
    with second.helping():
        for name in ("first", "second"):
            second.hand(lambda name=name: done.append((name, threading.get_ident(), torch.get_num_threads())))
        if helps:
            # Would never end if the work had to be done before the caller goes on.
            second.hand(lambda: done.append(("freed", is_free.wait(60.0), 0)))
            is_free.set()
        second.wait()
        share = torch.get_num_threads()
    assert [name for name, _, _ in done[:2]] == ["first", "second"]
    assert {ident == threading.get_ident() for _, ident, _ in done[:2]} == {not helps}
    assert {own for _, _, own in done[:2]} == {share} == {max(1, num_threads // 2)}
    assert torch.get_num_threads() == num_threads


def test_what_goes_wrong_there_is_raised_and_forgotten() -> None:
    torch.set_num_threads(2)
    second = SecondThread()

    def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"), second.helping():
        second.hand(fail)
    assert torch.get_num_threads() == 2
    with second.helping():
        second.hand(lambda: None)


def test_work_is_waited_for_when_the_caller_fails() -> None:
    torch.set_num_threads(2)
    second, may_end, done = SecondThread(), threading.Event(), []

    def slow() -> None:
        may_end.wait(60.0)
        done.append(True)

    def fail() -> None:
        with second.helping():
            second.hand(slow)
            threading.Timer(0.05, may_end.set).start()
            raise KeyError("elsewhere")

    with pytest.raises(KeyError, match="elsewhere"):
        fail()
    assert done == [True]
