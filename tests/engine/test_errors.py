"""What goes wrong while a program runs raises SimulationError, which names thread, frame and line of the source."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import pytest

from zexp.engine.sim import engine, run
from zexp.errors import SimulationError
from zexp.program import MUTEX, Builder

from .machines import machine, uniform

Wrong = Callable[[Builder], None]
CASES: list[tuple[Wrong, str]] = []


def wrong(message: str) -> Callable[[Wrong], Wrong]:
    def register(function: Wrong) -> Wrong:
        CASES.append((function, message))
        return function

    return register


@wrong("an index is outside its array")
def load_outside(k: Builder) -> None:
    k.load(k.array("a", 3)[k.cpu + 3])  # HERE


@wrong("an index is outside its array")
def load_below(k: Builder) -> None:
    k.load(k.array("a", 3)[k.cpu - 1])  # HERE


@wrong("an index is outside its array")
def store_outside(k: Builder) -> None:
    book = k.bookkeeping("a", 3)
    with k.for_range(4) as i:
        k.store(book[i], 1)  # HERE


@wrong("an index is outside its array")
def atomic_outside(k: Builder) -> None:
    k.atomic_add(k.array("a", 3)[k.cpu + (1 << 62)])  # HERE


@wrong("an index is outside its array")
def compare_and_swap_outside(k: Builder) -> None:
    k.compare_and_swap(k.array("a", 3)[k.cpu - (1 << 62)], 0, 1)  # HERE


@wrong("an index is outside its array")
def fill_outside(k: Builder) -> None:
    k.fill(k.bookkeeping("a", 3), k.cpu + 1, 3, 7)  # HERE


@wrong("an index is outside its array")
def fill_from_outside(k: Builder) -> None:
    k.fill(k.bookkeeping("a", 3), k.cpu + 4, 0, 7)  # HERE


@wrong("an index is outside its array")
def fill_a_negative_number(k: Builder) -> None:
    k.fill(k.bookkeeping("a", 3), 3, k.cpu - 1, 7)  # HERE


@wrong("an index is outside its array")
def copy_outside(k: Builder) -> None:
    k.copy(k.bookkeeping("a", 3), k.bookkeeping("b", 3), k.cpu - 1, 2)  # HERE


@wrong("an index is outside its array")
def copy_far_outside(k: Builder) -> None:
    k.copy(k.bookkeeping("a", 3), k.bookkeeping("b", 3), 1, k.cpu + ((1 << 63) - 1))  # HERE


@wrong("an index is outside its array")
def spinlock_outside(k: Builder) -> None:
    with k.lock(k.locks("l", 2)[k.cpu + 2]):  # HERE
        pass


@wrong("an index is outside its array")
def mutex_outside(k: Builder) -> None:
    with k.lock(k.locks("l", 2, MUTEX)[k.cpu - 1]):  # HERE
        pass


@wrong("an index is outside its array")
def trylock_outside(k: Builder) -> None:
    with k.trylock(k.locks("l", 2)[k.cpu + 2]):  # HERE
        pass


@wrong("an index is outside its array")
def memory_of_no_node(k: Builder) -> None:
    k.memory_read(k.cpu + 1)  # HERE


@wrong("division by zero")
def division(k: Builder) -> None:
    x = k.local(3) // k.cpu  # HERE
    k.work(x)


@wrong("division by zero")
def modulo(k: Builder) -> None:
    _ = 7 % k.cpu  # HERE


@wrong("rand_int needs a bound of 1 to 2**31, rand_exp a mean of 0 to 2**33")
def bound_of_zero(k: Builder) -> None:
    k.rand_int(k.cpu)  # HERE


@wrong("rand_int needs a bound of 1 to 2**31, rand_exp a mean of 0 to 2**33")
def bound_too_large(k: Builder) -> None:
    k.rand_int((1 << 31) + 1)  # HERE


@wrong("rand_int needs a bound of 1 to 2**31, rand_exp a mean of 0 to 2**33")
def negative_mean(k: Builder) -> None:
    k.rand_exp(-1)  # HERE


@wrong("rand_int needs a bound of 1 to 2**31, rand_exp a mean of 0 to 2**33")
def mean_too_large(k: Builder) -> None:
    k.rand_exp((1 << 33) + 1)  # HERE


@wrong("a lock is released by a thread that does not hold it")
def release_of_another_element(k: Builder) -> None:
    locks, i = k.locks("l", 2), k.local(0)
    k.acquire(locks[i])
    i.set(1)
    k.release(locks[i])  # HERE


@wrong("deadlock: nothing can run any more; waiting")
def lock_taken_twice(k: Builder) -> None:
    locks = k.locks("l", 2)
    with k.lock(locks[0]):
        k.acquire(locks[k.cpu])  # HERE
        k.release(locks[k.cpu])


@wrong("deadlock: nothing can run any more; waiting")
def nobody_wakes(k: Builder) -> None:
    k.wait_event(k.wait_queue("q"), lambda: 0)  # HERE


@wrong("no time passes: endless loop in")
def endless_loop(k: Builder) -> None:
    with k.while_(lambda: 1):  # HERE
        pass


@wrong("no time passes: endless loop in")
def endless_sleep_of_no_time(k: Builder) -> None:
    with k.while_(lambda: 1):  # HERE
        k.sleep_ns(0)


@pytest.mark.parametrize(("function", "message"), CASES, ids=[function.__name__ for function, _ in CASES])
def test_run_time_errors(function: Wrong, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "LIVELOCK_INSTRUCTIONS", 10_000)
    lines, start = inspect.getsourcelines(function)
    (marked,) = [start + i for i, line in enumerate(lines) if "# HERE" in line]
    simulated = uniform(2)
    k = Builder(simulated)
    with k.thread("culprit") as body, k.func("outer"), k.func("inner"):
        k.work(10)
        function(k)
    with k.thread("bystander") as bystander:
        k.work(1)
    k.spawn(body, 0)
    k.spawn(bystander, 1)
    with pytest.raises(SimulationError) as caught:
        run(k.finish(), simulated)
    text = str(caught.value)
    assert text.startswith(message)
    assert re.search(r"thread culprit on CPU 0, outer > inner( > \w+)* \(", text), text
    if function in (endless_loop, endless_sleep_of_no_time):  # which of its instructions is a matter of chance
        marked_lines = {marked, marked + 1}
        assert any(text.endswith(f"({__file__}:{line})") for line in marked_lines), text
    else:
        assert text.endswith(f"({__file__}:{marked})"), text


def test_a_deadlock_names_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = uniform(3)
    k = Builder(simulated)
    a, b = k.mutex("a"), k.mutex("b")
    with k.thread("forwards") as forwards, k.lock(a):
        k.work(1000)
        with k.lock(b):
            k.work(1)
    with k.thread("backwards") as backwards, k.lock(b):
        k.work(1000)
        with k.lock(a):
            k.work(1)
    with k.thread("daemon", daemon=True) as daemon:
        k.wait_event(k.wait_queue("q"), lambda: 0)
    k.spawn(forwards, 0)
    k.spawn(backwards, 1)
    k.spawn(daemon, 2)
    with pytest.raises(SimulationError, match="deadlock") as caught:
        run(k.finish(), simulated)
    text = str(caught.value)
    assert "thread forwards on CPU 0, __mutex_lock (" in text
    assert "thread backwards on CPU 1, __mutex_lock (" in text
    assert "daemon" not in text


def test_a_loop_in_which_time_passes_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "LIVELOCK_INSTRUCTIONS", 1000)
    monkeypatch.setattr(engine, "FIRST_SLICE", 100)
    simulated = uniform(1)
    k = Builder(simulated)
    flag = k.var("flag")
    with k.thread("t") as body, k.for_range(20_000):
        k.load(flag)
    k.spawn(body, 0)
    assert run(k.finish(), simulated).sim_ns == 100 + 20_000 * 4


LIMIT = "the simulated time passes its limit of 1125 s: thread culprit on CPU 0"


@pytest.mark.parametrize("seconds", [1126, 3000, 9_000_000_000])
@pytest.mark.parametrize("how", ["sleep", "busy", "work", "memory", "loop", "start"])
def test_time_beyond_the_limit(how: str, seconds: int) -> None:
    """Time never wraps around."""
    simulated = uniform(2)
    k = Builder(simulated)
    with k.thread("culprit") as body:
        if how == "sleep":
            k.sleep_ns(seconds * 10**9)
        elif how == "busy":
            k.busy_ns(seconds * 10**9)
        elif how == "work":
            k.work(k.local(seconds * 10**9))
        elif how == "memory":
            k.memory_read(0, seconds * 10**9)
        elif how == "loop":
            with k.for_range(seconds):
                k.busy_ns(10**9)
        k.work(1)
    with k.thread("other") as other:
        k.work(1)
    k.spawn(body, 0, seconds * 10**9 if how == "start" else 0)
    k.spawn(other, 1)
    with pytest.raises(SimulationError, match=re.escape(LIMIT)):
        run(k.finish(), simulated)


def test_times_below_the_limit_and_a_daemon_that_sleeps_for_ever() -> None:
    simulated = uniform(2)
    k = Builder(simulated)
    with k.thread("daemon", daemon=True) as daemon:
        k.sleep_ns((1 << 63) - 1)
    with k.thread("t") as body:
        k.busy_ns(300 * 10**9)
        k.sleep_ns(300 * 10**9)
        k.work(k.local(300 * 10**9))
        with k.for_range(4):
            k.work(1 << 28)
            k.work(1 << 28)  # not merged with the one before, nor does it overflow
    k.spawn(daemon, 0)
    k.spawn(body, 1)
    assert run(k.finish(), simulated).sim_ns == 900 * 10**9 + (1 << 31)


@pytest.mark.parametrize("place", ["cpu", "home"])
def test_a_machine_that_is_too_small_for_the_program(place: str) -> None:
    large = machine([[0, 9], [9, 0]], memory_ns=[[100, 200], [200, 100]])
    k = Builder(large)
    x = k.var("x", home=1 if place == "home" else 0)
    with k.thread("t") as body:
        k.load(x)
    k.spawn(body, 1 if place == "cpu" else 0)
    program = k.finish()
    run(program, large)
    with pytest.raises(SimulationError, match="larger machine"):
        run(program, uniform(1))


def test_many_memory_reads_take_their_time() -> None:
    simulated = uniform(1)
    k = Builder(simulated)
    with k.thread("t") as body:
        k.memory_read(0, 3 * 10**9)
    k.spawn(body, 0)
    assert run(k.finish(), simulated).sim_ns == 300 * 10**9
