"""Every misuse of the builder raises a StagingError that names the right construct and the author's line.

The line that must be named is marked ``# HERE``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from zexp.engine.sim import run
from zexp.program import MUTEX, Builder, StagingError

from .conftest import small_machine

Misuse = Callable[[Builder], object]
CASES: list[tuple[Misuse, str]] = []


def misuse(match: str) -> Callable[[Misuse], Misuse]:
    def register(function: Misuse) -> Misuse:
        CASES.append((function, match))
        return function

    return register


# ---- Python looks at a staged value -----------------------------------------------------------------------------


@misuse(r"k\.if_\(value\)")
def python_if(k: Builder) -> None:
    with k.thread("t"):
        x = k.now_ns()
        if x > 3:  # HERE
            k.work(1)


@misuse(r"k\.while_\(lambda: value\)")
def python_while(k: Builder) -> None:
    with k.thread("t"):
        x = k.now_ns()
        while x:  # HERE
            pass


@misuse(r"`&` and `\|` for `and` and `or`")
def python_and(k: Builder) -> None:
    with k.thread("t"):
        x = k.now_ns()
        k.store(
            k.var("v"),
            x and 1,  # HERE
        )


@misuse(r"`&` and `\|` for `and` and `or`")
def python_or(k: Builder) -> None:
    with k.thread("t"):
        x = k.now_ns()
        _ = x or 1  # HERE


@misuse("`== 0` for `not`")
def python_not(k: Builder) -> None:
    with k.thread("t"):
        x = k.now_ns()
        _ = not x  # HERE


@misuse("truth")
def python_bool(k: Builder) -> None:
    with k.thread("t"):
        _ = bool(k.cpu)  # HERE


@misuse("truth")
def chained_comparison(k: Builder) -> None:
    with k.thread("t"):
        x = k.now_ns()
        _ = 1 < x < 3  # HERE


@misuse("truth")
def membership(k: Builder) -> None:
    with k.thread("t"):
        x = k.now_ns()
        _ = x in [1, 2]  # HERE


@misuse("truth")
def minimum_of_python(k: Builder) -> None:
    with k.thread("t"):
        x = k.now_ns()
        _ = min(x, 3)  # HERE


@misuse(r"k\.for_range\(value\)")
def python_range(k: Builder) -> None:
    with k.thread("t"):
        x = k.now_ns()
        for _ in range(x):  # HERE
            pass


@misuse("cannot be iterated")
def iteration(k: Builder) -> None:
    with k.thread("t"):
        x = k.now_ns()
        for _ in x:  # HERE
            pass


@misuse("not a Python number")
def python_int(k: Builder) -> None:
    with k.thread("t"):
        _ = int(k.cpu)  # HERE


@misuse("not a Python number")
def python_float(k: Builder) -> None:
    with k.thread("t"):
        _ = float(k.cpu)  # HERE


@misuse("not a Python number")
def python_len(k: Builder) -> None:
    with k.thread("t"):
        _ = len(k.cpu)  # HERE


@misuse("not a Python number")
def python_round(k: Builder) -> None:
    with k.thread("t"):
        _ = round(k.cpu)  # HERE


@misuse("use `//` for `/`")
def true_division(k: Builder) -> None:
    with k.thread("t"):
        _ = k.cpu / 2  # HERE


@misuse("use `//` for `/`")
def true_division_of_a_constant(k: Builder) -> None:
    with k.thread("t"):
        _ = 2 / k.cpu  # HERE


@misuse("list indexing")
def index_of_a_python_list(k: Builder) -> None:
    with k.thread("t"):
        _ = [1, 2, 3][k.cpu]  # HERE


@misuse("not a Python number")
def spawn_with_a_staged_parameter(k: Builder) -> None:
    with k.thread("t") as body:
        body.arg("x")
    with k.thread("u"):
        k.spawn(body, 0, x=k.cpu)  # type: ignore[arg-type]  # HERE


# ---- locks ------------------------------------------------------------------------------------------------------


@misuse(r"unbalanced lock at the end of k\.if_: held there: lock_a")
def lock_held_after_a_branch(k: Builder) -> None:
    a = k.spinlock("lock_a")
    with k.thread("t"):
        with k.if_(k.cpu):  # HERE
            k.acquire(a)
        k.release(a)


@misuse(r"unbalanced lock at the end of k\.else_: held there: none; held at its start: lock_a")
def lock_released_in_a_branch(k: Builder) -> None:
    a = k.spinlock("lock_a")
    with k.thread("t"), k.lock(a):
        with k.if_(k.cpu):
            k.work(1)
        with k.else_():  # HERE
            k.release(a)


@misuse(r"unbalanced lock at the end of k\.a loop: held there: lock_a|unbalanced lock at the end of a loop")
def lock_held_after_a_loop_turn(k: Builder) -> None:
    a = k.spinlock("lock_a")
    with k.thread("t"):
        with k.for_range(3):  # HERE
            k.acquire(a)
        k.release(a)


@misuse(r"unbalanced lock at the end of thread 't': held there: lock_a")
def lock_held_at_the_end_of_a_thread(k: Builder) -> None:
    a = k.spinlock("lock_a")
    with k.thread("t"):  # HERE
        k.acquire(a)


@misuse(r"unbalanced lock at k\.break_\(\): held there: lock_a")
def break_out_of_a_lock(k: Builder) -> None:
    a = k.spinlock("lock_a")
    with k.thread("t"), k.for_range(3), k.lock(a), k.if_(k.cpu):
        k.break_()  # HERE


@misuse(r"unbalanced lock at k\.break_\(\): held there: lock_a")
def break_out_of_a_trylock(k: Builder) -> None:
    a = k.spinlock("lock_a")
    with k.thread("t"), k.while_(lambda: 1), k.trylock(a):
        k.break_()  # HERE


@misuse("lock_a is taken while it is already held")
def double_acquire(k: Builder) -> None:
    a = k.spinlock("lock_a")
    with k.thread("t"), k.lock(a):
        k.acquire(a)  # HERE


@misuse("locks is taken while it is already held")
def double_acquire_of_a_staged_element(k: Builder) -> None:
    locks = k.locks("locks", 4)
    with k.thread("t"):
        i = k.cpu
        with k.lock(locks[i]), k.lock(locks[i]):  # HERE
            k.work(1)


@misuse("lock_a is released but not held")
def release_of_a_lock_not_held(k: Builder) -> None:
    a, b = k.spinlock("lock_a"), k.spinlock("lock_b")
    with k.thread("t"), k.lock(b):
        k.release(a)  # HERE


@misuse("lock_a is released but not held")
def release_twice(k: Builder) -> None:
    a = k.spinlock("lock_a")
    with k.thread("t"), k.lock(a):  # HERE
        k.release(a)


@misuse("sleeping while holding the spinlock lock_a")
def sleep_with_a_spinlock(k: Builder) -> None:
    a = k.spinlock("lock_a")
    with k.thread("t"), k.lock(a):
        k.sleep_ns(5)  # HERE


@misuse("sleeping while holding the spinlock lock_a")
def sleep_with_a_spinlock_below_a_mutex(k: Builder) -> None:
    a, m = k.spinlock("lock_a"), k.mutex("mutex")
    with k.thread("t"), k.lock(m):
        k.sleep_ns(5)
        with k.trylock(a):
            k.sleep_ns(5)  # HERE


@misuse("taking the mutex mutex while holding the spinlock lock_a")
def mutex_with_a_spinlock(k: Builder) -> None:
    a, m = k.spinlock("lock_a"), k.mutex("mutex")
    with k.thread("t"), k.lock(a):
        k.acquire(m)  # HERE


@misuse("waiting in queue while holding the spinlock lock_a")
def wait_with_a_spinlock(k: Builder) -> None:
    a, queue = k.spinlock("lock_a"), k.wait_queue("queue")
    with k.thread("t"), k.lock(a):
        k.wait_event(queue, lambda: k.cpu)  # HERE


@misuse("trylock of the mutex mutex: only spinlocks have one")
def trylock_of_a_mutex(k: Builder) -> None:
    m = k.mutex("mutex")
    with k.thread("t"), k.trylock(m):  # HERE
        pass


@misuse("is not a lock")
def lock_of_a_variable(k: Builder) -> None:
    v = k.var("v")
    with k.thread("t"), k.trylock(v):  # type: ignore[arg-type]  # HERE
        pass


# ---- values and things in the wrong place -------------------------------------------------------------------------


@misuse("belongs to another program")
def value_of_another_program(k: Builder) -> None:
    other = Builder(small_machine())
    v = k.var("v")
    with other.thread("other"), k.thread("t"):
        k.store(v, other.cpu)  # HERE


@misuse("v belongs to another program")
def variable_of_another_program(k: Builder) -> None:
    v = Builder(small_machine()).var("v")
    with k.thread("t"):
        k.load(v)  # HERE


@misuse("a belongs to another program")
def lock_of_another_program(k: Builder) -> None:
    a = Builder(small_machine()).spinlock("a")
    with k.thread("t"):
        k.acquire(a)  # HERE


@misuse("queue belongs to another program")
def queue_of_another_program(k: Builder) -> None:
    queue = Builder(small_machine()).wait_queue("queue")
    with k.thread("t"):
        k.wake(queue)  # HERE


@misuse("spawn|another program")
def thread_of_another_program(k: Builder) -> None:
    with Builder(small_machine()).thread("t") as body:
        pass
    with k.thread("u"):
        pass
    k.spawn(body, 0)  # HERE


@misuse("used in the code of thread 'second'")
def value_of_another_thread(k: Builder) -> None:
    v = k.var("v")
    with k.thread("first"):
        x = k.load(v)
    with k.thread("second"):
        k.store(v, x)  # HERE


@misuse("made inside a branch or loop that has ended")
def value_after_its_branch(k: Builder) -> None:
    v = k.var("v")
    with k.thread("t"):
        with k.if_(k.cpu):
            x = k.load(v)
        k.store(v, x)  # HERE


@misuse("made inside a branch or loop that has ended")
def value_of_the_other_branch(k: Builder) -> None:
    v = k.var("v")
    with k.thread("t"):
        with k.if_(k.cpu):
            x = k.load(v)
        with k.else_():
            k.store(v, x)  # HERE


@misuse("made inside a branch or loop that has ended")
def counter_after_its_loop(k: Builder) -> None:
    v = k.var("v")
    with k.thread("t"):
        with k.for_range(3) as i:
            k.work(1)
        k.store(v, i)  # HERE


@misuse("made inside a branch or loop that has ended")
def local_after_its_loop(k: Builder) -> None:
    with k.thread("t"):
        with k.while_(lambda: k.cpu):
            x = k.local(1)
        x.set(2)  # HERE


@misuse(r"k\.else_\(\) must follow")
def else_without_if(k: Builder) -> None:
    with k.thread("t"):
        k.work(1)
        with k.else_():  # HERE
            pass


@misuse(r"k\.else_\(\) must follow")
def else_not_directly_after_if(k: Builder) -> None:
    with k.thread("t"):
        with k.if_(k.cpu):
            pass
        k.work(1)
        with k.else_():  # HERE
            pass


@misuse(r"k\.else_\(\) must follow")
def two_elses(k: Builder) -> None:
    with k.thread("t"):
        with k.if_(k.cpu):
            k.work(1)
        with k.else_():
            k.work(2)
        with k.else_():  # HERE
            pass


@misuse(r"k\.break_\(\) outside a loop")
def break_outside_a_loop(k: Builder) -> None:
    with k.thread("t"), k.if_(k.cpu):
        k.break_()  # HERE


@misuse(r"k\.while_ needs a function")
def while_without_a_function(k: Builder) -> None:
    with k.thread("t"):
        x = k.local(3)
        with k.while_(x):  # type: ignore[arg-type]  # HERE
            pass


@misuse("code must stand inside `with k.thread")
def code_outside_a_thread(k: Builder) -> None:
    v = k.var("v")
    k.store(v, 1)  # HERE


@misuse("code must stand inside `with k.thread")
def work_outside_a_thread(k: Builder) -> None:
    k.work(5)  # HERE


@misuse("code must stand inside `with k.thread")
def cpu_outside_a_thread(k: Builder) -> None:
    _ = k.cpu  # HERE


@misuse("code must stand inside `with k.thread|another thread|code of thread")
def arithmetic_after_the_thread(k: Builder) -> None:
    with k.thread("t"):
        x = k.now_ns()
    _ = x + 1  # HERE


@misuse(r"k\.thread\('inner'\) inside the code of thread 'outer'")
def nested_thread(k: Builder) -> None:
    with k.thread("outer"), k.thread("inner"):  # HERE
        pass


@misuse(r"k\.line\('inner'\) inside another k\.line")
def nested_line(k: Builder) -> None:
    with k.line("outer"), k.line("inner"):  # HERE
        pass


# ---- spawn and finish ---------------------------------------------------------------------------------------------


@misuse("spawn on CPU 4: the machine has CPUs 0 to 3")
def spawn_on_a_cpu_that_does_not_exist(k: Builder) -> None:
    with k.thread("t") as body:
        pass
    k.spawn(body, 4)  # HERE


@misuse("spawn on CPU -1")
def spawn_on_a_negative_cpu(k: Builder) -> None:
    with k.thread("t") as body:
        pass
    k.spawn(body, -1)  # HERE


@misuse("CPU 2 already has a thread")
def spawn_twice_on_a_cpu(k: Builder) -> None:
    with k.thread("t") as body:
        pass
    k.spawn(body, 2)
    k.spawn(body, 2)  # HERE


@misuse(r"got \['y'\], its parameters are \['x'\]")
def spawn_with_other_parameters(k: Builder) -> None:
    with k.thread("t") as body:
        body.arg("x")
    k.spawn(body, 2, y=1)  # HERE


@misuse(r"got \[\], its parameters are \['x'\]")
def spawn_without_parameters(k: Builder) -> None:
    with k.thread("t") as body:
        body.arg("x")
    k.spawn(body, 2)  # HERE


@misuse("start")
def spawn_before_the_beginning(k: Builder) -> None:
    with k.thread("t") as body:
        pass
    k.spawn(body, 0, start_ns=-1)  # HERE


@misuse("neither an int|int")
def spawn_with_a_fraction(k: Builder) -> None:
    with k.thread("t") as body:
        body.arg("x")
    k.spawn(body, 0, x=1.5)  # type: ignore[arg-type]  # HERE


@misuse("no thread that ends")
def nothing_spawned(k: Builder) -> None:
    with k.thread("t"):
        pass
    k.finish()  # HERE


@misuse("no thread that ends")
def nothing_spawned_until_a_horizon(k: Builder) -> None:
    k.run_until(1000)
    k.finish()  # HERE


@misuse(r"run_until\(2000\): the run already ends at 1000 ns")
def two_horizons(k: Builder) -> None:
    k.run_until(1000)
    k.run_until(2000)  # HERE


@misuse(r"run_until\(0\): give a positive number")
def no_time_at_all(k: Builder) -> None:
    k.run_until(0)  # HERE


@misuse("neither an int|int")
def a_horizon_that_is_a_fraction(k: Builder) -> None:
    k.run_until(1e9)  # type: ignore[arg-type]  # HERE


@misuse("series 's' is declared twice")
def two_series_of_one_name(k: Builder) -> None:
    k.series("s", 3, "ns")
    k.series("s", 4, "ns")  # HERE


@misuse("needs at least one element")
def series_without_room(k: Builder) -> None:
    k.series("s", 0, "ns")  # HERE


@misuse("neither an int|int")
def series_of_a_fraction(k: Builder) -> None:
    k.series("s", 1.5, "ns")  # type: ignore[arg-type]  # HERE


@misuse("is not a series")
def record_into_something_else(k: Builder) -> None:
    book = k.bookkeeping("b", 3)
    with k.thread("t"):
        k.record(book, 1)  # type: ignore[arg-type]  # HERE


@misuse("series 's' belongs to another program")
def record_into_another_program(k: Builder) -> None:
    series = Builder(small_machine()).series("s", 3, "ns")
    with k.thread("t"):
        k.record(series, 1)  # HERE


@misuse("inside `with k.thread")
def record_outside_threads(k: Builder) -> None:
    k.record(k.series("s", 3, "ns"), 1)  # HERE


@misuse("no thread that ends")
def only_daemons(k: Builder) -> None:
    with k.thread("t", daemon=True) as body:
        pass
    k.spawn(body, 0)
    k.finish()  # HERE


@misuse("finish inside the code of thread 't'")
def finish_inside_a_thread(k: Builder) -> None:
    with k.thread("t") as body:
        k.spawn(body, 0)
        k.finish()  # HERE


# ---- numbers ------------------------------------------------------------------------------------------------------


@misuse(r"array\[3\] is outside its 3 elements")
def index_too_large(k: Builder) -> None:
    array = k.array("array", 3)
    _ = array[3]  # HERE


@misuse(r"array\[-1\] is outside its 3 elements")
def index_negative(k: Builder) -> None:
    array = k.bookkeeping("array", 3)
    _ = array[-1]  # HERE


@misuse(r"array: 3 elements from 1 on are not in its 3")
def fill_too_much(k: Builder) -> None:
    array = k.bookkeeping("array", 3)
    with k.thread("t"):
        k.fill(array, 1, 3, 0)  # HERE


@misuse(r"array: -1 elements from 1 on are not in its 3")
def fill_less_than_nothing(k: Builder) -> None:
    array = k.bookkeeping("array", 3)
    with k.thread("t"):
        k.fill(array, 1, -1, 0)  # HERE


@misuse(r"other: 1 elements from 3 on are not in its 3")
def copy_outside(k: Builder) -> None:
    array, other = k.bookkeeping("array", 3), k.bookkeeping("other", 3)
    with k.thread("t"):
        k.copy(other, array, 3, 1)  # HERE


@misuse(r"other has 4 elements and array 3")
def copy_of_another_length(k: Builder) -> None:
    array, other = k.bookkeeping("array", 3), k.bookkeeping("other", 4)
    with k.thread("t"):
        k.copy(other, array, 0, k.now_ns())  # HERE


@misuse(r"array lies on cache lines: access its elements one by one")
def copy_of_cache_lines(k: Builder) -> None:
    array, other = k.array("array", 3), k.bookkeeping("other", 3)
    with k.thread("t"):
        k.copy(other, array, 0, 3)  # HERE


@misuse(r"is not an array")
def fill_an_element(k: Builder) -> None:
    array = k.bookkeeping("array", 3)
    with k.thread("t"):
        k.fill(array[0], 0, 1, 0)  # type: ignore[arg-type]  # HERE


@misuse(r"locks\[3\] is outside its 3 locks")
def lock_index_too_large(k: Builder) -> None:
    locks = k.locks("locks", 3, MUTEX)
    _ = locks[3]  # HERE


@misuse("is not a variable: name one element")
def load_of_a_whole_array(k: Builder) -> None:
    array = k.array("array", 3)
    with k.thread("t"):
        k.load(array)  # type: ignore[arg-type]  # HERE


@misuse("work of -1 cycles")
def negative_work(k: Builder) -> None:
    with k.thread("t"):
        k.work(-1)  # HERE


@misuse(r"work of 1e\+18 cycles")
def huge_work(k: Builder) -> None:
    with k.thread("t"):
        k.work(1e18)  # HERE


@misuse("work of nan cycles")
def no_number_of_work(k: Builder) -> None:
    with k.thread("t"):
        k.work(float("nan"))  # HERE


@misuse("at least one element, not 0")
def empty_array(k: Builder) -> None:
    k.array("array", 0)  # HERE


@misuse("at least one lock, not 0")
def empty_lock_array(k: Builder) -> None:
    k.locks("locks", 0)  # HERE


@misuse("2 initial values for 3 elements")
def wrong_number_of_initial_values(k: Builder) -> None:
    k.array("array", 3, init=[1, 2])  # HERE


@misuse("True is neither an int nor a staged value")
def store_a_bool(k: Builder) -> None:
    v = k.var("v")
    with k.thread("t"):
        k.store(v, True)  # HERE


@misuse("True is neither an int nor a staged value")
def divide_by_a_bool(k: Builder) -> None:
    with k.thread("t"):
        _ = k.cpu // True  # HERE


@misuse(r"1\.5 is neither an int nor a staged value")
def add_a_float(k: Builder) -> None:
    with k.thread("t"):
        _ = k.cpu + 1.5  # type: ignore[operator]  # HERE


@misuse("'3' is neither an int nor a staged value")
def sleep_a_text(k: Builder) -> None:
    with k.thread("t"):
        k.sleep_ns("3")  # type: ignore[arg-type]  # HERE


@misuse("None is neither an int nor a staged value")
def repeat_none(k: Builder) -> None:
    with k.thread("t"), k.for_range(None):  # type: ignore[arg-type]  # HERE
        pass


@misuse(r"compared with an int or another staged value, not with 1\.0")
def compare_with_a_float(k: Builder) -> None:
    with k.thread("t"):
        _ = k.cpu == 1.0  # HERE


@misuse("compared with an int or another staged value, not with None")
def compare_with_none(k: Builder) -> None:
    with k.thread("t"):
        _ = k.cpu != None  # noqa: E711  # HERE


@misuse("64 bits|int64|2\\*\\*63")
def constant_beyond_64_bits(k: Builder) -> None:
    v = k.var("v")
    with k.thread("t"):
        k.store(v, 1 << 63)  # HERE


@misuse("home|node")
def home_that_does_not_exist(k: Builder) -> None:
    k.var("v", home=2)  # HERE


@misuse("home|node")
def homes_that_do_not_exist(k: Builder) -> None:
    k.locks("locks", 2, homes=[0, -1])  # HERE


@misuse("home|node")
def line_on_a_node_that_does_not_exist(k: Builder) -> None:
    with k.line("line", home=2):  # HERE
        pass


@misuse("home")
def too_few_homes(k: Builder) -> None:
    k.array("array", 3, homes=[0, 1])  # HERE


@misuse("per_line|line")
def nothing_per_line(k: Builder) -> None:
    k.array("array", 3, per_line=0)  # HERE


@misuse(r"int")
def fractional_initial_value(k: Builder) -> None:
    k.var("v", 1.5)  # type: ignore[arg-type]  # HERE


@misuse("neither an int|int")
def text_as_an_index(k: Builder) -> None:
    array = k.array("array", 3)
    _ = array["1"]  # type: ignore[index]  # HERE


@misuse("work of '3' cycles|int|number")
def text_as_work(k: Builder) -> None:
    with k.thread("t"):
        k.work("3")  # type: ignore[arg-type]  # HERE


@pytest.mark.parametrize(("function", "match"), CASES, ids=[function.__name__ for function, _ in CASES])
def test_misuse(k: Builder, function: Misuse, match: str) -> None:
    lines, start = inspect.getsourcelines(function)
    (marked,) = [start + i for i, line in enumerate(lines) if "# HERE" in line]
    with pytest.raises(StagingError, match=match) as caught:
        function(k)
    assert (caught.value.file, caught.value.line) == (__file__, marked)
    assert str(caught.value).endswith(f"({__file__}:{marked})")


def test_numpy_integers_are_integers(k: Builder) -> None:
    v = k.array("v", 3, init=np.array([1, 2, 3], np.int32))
    one: Any = np.int64(1)
    three: Any = np.int64(3)
    with k.thread("t") as body:
        x = k.load(v[one])
        for value in (x + three, x // three, x == three, x < three, k.minimum(x, three)):
            k.store(v[0], value)
        with k.for_range(three):
            k.work(np.float64(1.5))
    k.spawn(body, one, three)
    k.finish()


def test_what_is_no_misuse(k: Builder) -> None:
    """Corners that must stay allowed."""
    a, b, m = k.spinlock("a"), k.spinlock("b"), k.mutex("m")
    v, queue = k.var("v"), k.wait_queue("queue")
    with k.thread("t") as body:
        outside = k.load(v)
        with k.if_(outside):
            k.store(v, outside)  # a value of an outer scope
        with k.else_(), k.for_range(0):
            k.store(v, outside)
        k.acquire(a)
        k.acquire(b)
        k.release(a)  # in another order than taken
        k.release(b)
        with k.lock(m):
            k.sleep_ns(1)
            k.wait_event(queue, lambda: 1)
            with k.for_range(3), k.lock(a), k.for_range(2), k.if_(k.cpu):
                k.break_()  # with a lock taken outside the loop
        with k.trylock(a) as taken:
            k.store(v, taken)
        with k.else_():
            k.work(1)
        with k.while_(lambda: 0):
            k.work(1)
    k.spawn(body, 0)
    k.finish()


def test_arrays_are_not_iterated_in_python() -> None:
    k = Builder(small_machine())
    array = k.array("numbers", 2)
    with pytest.raises(StagingError, match="for_each"):
        list(array)


def test_wait_inside_the_condition_of_a_wait() -> None:
    k = Builder(small_machine())
    outer, inner = k.wait_queue("outer"), k.wait_queue("inner")

    def condition() -> int:
        k.wait_event(inner, lambda: 1)
        return 1

    with pytest.raises(StagingError, match="inside the condition"), k.thread("t"):
        k.wait_event(outer, condition)


def test_for_range_looks_at_its_bound_once() -> None:
    machine = small_machine()
    k = Builder(machine)
    with k.thread("t") as thread:
        bound = k.local(3)
        with k.for_range(bound):
            k.count("turns")
            bound.set(10)
    k.spawn(thread, 0)
    assert run(k.finish(), machine).metrics["turns"] == 3
