"""Runs that end at a given time, and what is left in the middle of something then.

On ``uniform`` machines a cycle takes 1 ns, a locked instruction on an owned line 20 ns, a wake-up 1000 ns.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zexp.engine.sim import engine, run
from zexp.engine.sim import state as sim
from zexp.errors import SimulationError
from zexp.machine import Machine
from zexp.program import MUTEX, SPINLOCK, Builder, LockKind, LockRef, Program
from zexp.result import LockStats, RunResult

from .machines import uniform
from .observed import finished_state, simulate
from .reference import interpret

NS = 1000  # ps
CHECKS = settings(
    deadline=None, derandomize=True, database=None, max_examples=300, suppress_health_check=list(HealthCheck)
)


def checked(program: Program, machine: Machine) -> RunResult:
    assert simulate(program, machine) == interpret(program, machine)
    return run(program, machine)


def stacks(result: RunResult, comm: str) -> dict[str, int]:
    """Time in ns by the innermost frame."""
    return {s.stack[-1]: s.self_ps // NS for s in result.profile.stacks if s.comm == comm}


def worker(k: Builder, *, daemon: bool = True, cpu: int = 0) -> None:
    """100 ns a turn, for ever."""
    with k.thread("worker", daemon=daemon) as body, k.func("worker"), k.while_(lambda: 1):
        k.work(100)
        k.count("turns")
    k.spawn(body, cpu)


def test_daemons_only() -> None:
    k = Builder(uniform(1))
    worker(k)
    k.run_until(1050)
    result = checked(k.finish(), uniform(1))
    assert result.sim_ns == 1050
    assert result.metrics["turns"] == 10
    assert stacks(result, "worker") == {"worker": 1050}


def test_a_thread_that_never_ends_is_cut_as_well() -> None:
    k = Builder(uniform(1))
    worker(k, daemon=False)
    k.run_until(1050)
    assert checked(k.finish(), uniform(1)).sim_ns == 1050


def test_nothing_is_executed_at_the_horizon_itself() -> None:
    for horizon, turns in ((1000, 9), (1001, 10)):
        k = Builder(uniform(1))
        worker(k)
        k.run_until(horizon)
        assert checked(k.finish(), uniform(1)).metrics["turns"] == turns


@pytest.mark.parametrize(("horizon", "end"), [(299, 299), (300, 300), (301, 300), (5000, 300)])
def test_threads_that_end_before_the_horizon_end_the_run(horizon: int, end: int) -> None:
    k = Builder(uniform(2))
    worker(k)
    with k.thread("short") as short:
        k.work(300)
    k.spawn(short, 1)
    k.run_until(horizon)
    assert checked(k.finish(), uniform(2)).sim_ns == end


def test_only_daemons_that_end_do_not_end_the_run() -> None:
    k = Builder(uniform(1))
    with k.thread("t", daemon=True) as body:
        k.work(300)
    k.spawn(body, 0)
    k.run_until(5000)
    result = checked(k.finish(), uniform(1))
    assert result.sim_ns == 5000
    assert result.profile.total_ps() == 300 * NS


def test_inside_a_sleep() -> None:
    k = Builder(uniform(1))
    with k.thread("t", daemon=True) as body:
        k.work(300)
        k.sleep_ns(10**9)
        k.count("woken")
    k.spawn(body, 0)
    k.run_until(5000)
    program = k.finish()
    result = checked(program, uniform(1))
    assert result.sim_ns == 5000
    assert result.metrics["woken"] == 0
    assert simulate(program, uniform(1)).off_cpu == [4700 * NS]


def test_before_a_thread_starts() -> None:
    k = Builder(uniform(2))
    worker(k)
    with k.thread("late") as late:
        k.count("late")
    k.spawn(late, 1, start_ns=500)
    k.run_until(500)
    result = checked(k.finish(), uniform(2))
    assert (result.sim_ns, result.metrics["late"]) == (500, 0)


def test_all_wait_for_ever() -> None:
    k = Builder(uniform(2))
    a, b, queue = k.mutex("a"), k.mutex("b"), k.wait_queue("q")
    with k.thread("forwards") as forwards, k.lock(a):
        k.work(1000)
        with k.lock(b):
            k.work(1)
    with k.thread("waits", daemon=True) as waits, k.lock(b):
        k.wait_event(queue, lambda: 0)
    k.spawn(forwards, 0)
    k.spawn(waits, 1)
    program = k.finish()
    with pytest.raises(SimulationError, match="deadlock"):
        run(program, uniform(2))
    k.run_until(10_000)
    assert checked(k.finish(), uniform(2)).sim_ns == 10_000


def stats(result: RunResult) -> LockStats:
    (lock,) = result.locks
    return lock


def test_inside_a_mutex_wait() -> None:
    """The holder sleeps until 5 us, so the waiter is asleep at the horizon."""
    k = Builder(uniform(2))
    mutex = k.mutex("m")
    with k.thread("holder", daemon=True) as holder, k.lock(mutex):
        k.count("had")
        k.sleep_ns(5000)
    with k.thread("waiter", daemon=True) as waiter, k.lock(mutex):
        k.count("had")
    k.spawn(holder, 0)
    k.spawn(waiter, 1, start_ns=1000)
    k.run_until(3000)
    program = k.finish()
    result = checked(program, uniform(2))
    assert result.metrics["had"] == stats(result).acquisitions == 1
    assert stats(result).contended == stats(result).wait_ns.count == stats(result).wait_ns.total == 0
    arrived = 1000 + 50 + 20
    assert simulate(program, uniform(2)).off_cpu == [(3000 - 120) * NS, (3000 - arrived) * NS]


def two(horizon: int) -> RunResult:
    """CPU 0 has the lock from 120 ns on and releases it at 1120; CPU 1 gets it at 1170, the line's way later."""
    k = Builder(uniform(2))
    lock = k.spinlock("l")
    with k.thread("t", daemon=True) as body:
        with k.lock(lock):
            k.count("had")
            k.work(1000)
        k.work(10_000)
    k.spawn(body, 0)
    k.spawn(body, 1, start_ns=300)
    k.run_until(horizon)
    result = checked(k.finish(), uniform(2))
    assert result.metrics.get("had") == stats(result).acquisitions
    return result


def test_a_lock_counts_when_the_thread_goes_on_with_it() -> None:
    def figures(horizon: int) -> tuple[int, int, int]:
        lock = stats(two(horizon))
        return lock.acquisitions, lock.contended, lock.wait_ns.total

    assert figures(120) == (0, 0, 0)  # the locked instruction ends at the horizon
    assert figures(121) == (1, 0, 0)
    granted = next(h for h in range(1100, 1400) if figures(h)[0] == 2)
    assert figures(granted - 1) == (1, 0, 0)
    # Before it is granted it is there: released, but under way.
    arrived = 300 + 50 + 20
    assert figures(granted) == (2, 1, granted - 1 - arrived)
    assert figures(5000) == figures(granted)


def contend(kind: LockKind, threads: int, work: list[int], sleep: int, horizon: int) -> Program:
    k = Builder(uniform(8))
    lock: LockRef = k.locks("l", 1, kind)[0]
    with k.thread("t", daemon=True) as body, k.while_(lambda: 1):
        with k.lock(lock):
            k.count("had")
            k.work(k.rand_int(work[0]))
            if kind.mutex and sleep:
                with k.if_(k.rand_int(4) == 0):
                    k.sleep_ns(sleep)
        k.work(work[1])
    with k.thread("tries", daemon=True) as tries, k.while_(lambda: 1):
        k.work(work[2])
        if not kind.mutex:
            with k.trylock(lock):
                k.count("had")
    for cpu in range(threads):
        k.spawn(body if cpu else tries, cpu)
    k.run_until(horizon)
    return k.finish()


@pytest.mark.parametrize("kind", [SPINLOCK, MUTEX], ids=["spinlock", "mutex"])
@given(
    st.integers(2, 8), st.lists(st.integers(1, 400), min_size=3, max_size=3), st.integers(0, 3000),
    st.integers(1, 20_000), st.integers(0, 1 << 32),
)  # fmt: skip
@CHECKS
def test_acquisitions_are_what_a_program_counts_itself(
    kind: LockKind, threads: int, work: list[int], sleep: int, horizon: int, seed: int
) -> None:
    result = run(contend(kind, threads, work, sleep, horizon), uniform(8), seed=seed)
    lock = stats(result)
    assert result.sim_ns == horizon
    assert result.metrics["had"] == lock.acquisitions
    assert lock.wait_ns.count == lock.contended <= lock.acquisitions
    assert lock.acquisitions - 1 <= lock.hold_ns.count <= lock.acquisitions


@given(st.integers(1, 8000), st.integers(0, 1 << 32))
@settings(CHECKS, max_examples=30)
def test_a_longer_run_begins_with_the_shorter_one(horizon: int, seed: int) -> None:
    short, long = (
        run(contend(MUTEX, 6, [300, 100, 50], 700, h), uniform(8), seed=seed) for h in (horizon, horizon + 500)
    )
    assert short.instructions <= long.instructions
    assert short.metrics["had"] <= long.metrics["had"]
    assert all(s.self_ps <= long.profile.self_ps(s.stack[-1], s.comm) for s in short.profile.stacks)


def test_two_runs_are_equal() -> None:
    program = contend(MUTEX, 8, [300, 100, 50], 700, 100_000)
    assert simulate(program, uniform(8), 3) == simulate(program, uniform(8), 3) != simulate(program, uniform(8), 4)


def test_daemons_run_ahead_when_nobody_else_can_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    k = Builder(uniform(2))
    worker(k, cpu=0)
    worker(k, cpu=1)
    k.run_until(100_000)
    state = engine.prepare(k.finish(), uniform(2), 0)
    assert (state.thread[:, sim.T_ORDERED] > 0).all()
    k = Builder(uniform(2))
    worker(k, cpu=0)
    worker(k, cpu=1, daemon=False)
    k.run_until(100_000)
    state = engine.prepare(k.finish(), uniform(2), 0)
    assert state.thread[0, sim.T_ORDERED] == 0 < state.thread[1, sim.T_ORDERED]


@pytest.mark.parametrize("how", ["sleep", "busy", "memory", "start"])
def test_threads_beyond_the_limit_of_time(how: str) -> None:
    """What lies behind the horizon does not matter, however far."""
    long = (1 << 63) - 1
    k = Builder(uniform(2))
    with k.thread("t", daemon=True) as body:
        if how == "sleep":
            k.sleep_ns(long)
        elif how == "busy":
            k.busy_ns(long)
        elif how == "memory":
            k.memory_read(0, long)
        k.count("never")
    k.spawn(body, 0, long if how == "start" else 0)
    worker(k, cpu=1)
    k.run_until(10_000)
    result = run(k.finish(), uniform(2))
    assert (result.sim_ns, result.metrics["never"], result.metrics["turns"]) == (10_000, 0, 99)
    assert result.profile.total_ps("worker") == 10_000 * NS
    assert result.profile.total_ps("t") == (10_000 * NS if how in ("busy", "memory") else 0)


def test_a_horizon_beyond_the_limit_of_time() -> None:
    most = sim.MAX_TIME // NS
    for horizon in (most, most + 1):
        k = Builder(uniform(1))
        with k.thread("t", daemon=True) as body:
            k.work(1)
        k.spawn(body, 0)
        k.run_until(horizon)
        program = k.finish()
        if horizon == most:
            assert finished_state(program, uniform(1)).scalars[sim.G_END] == most * NS
        else:
            with pytest.raises(SimulationError, match=f"run_until {horizon} ns: a run can simulate at most {most} ns"):
                run(program, uniform(1))


def test_an_endless_loop_in_no_time_is_still_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "LIVELOCK_INSTRUCTIONS", 1000)
    monkeypatch.setattr(engine, "FIRST_SLICE", 100)
    k = Builder(uniform(1))
    with k.thread("t", daemon=True) as body, k.while_(lambda: 1):
        k.count("turns")
    k.spawn(body, 0)
    k.run_until(1000)
    with pytest.raises(SimulationError, match="no time passes"):
        run(k.finish(), uniform(1))


@pytest.mark.parametrize("first", [True, False])
def test_a_lock_taken_in_the_very_moment_another_thread_ends_the_run(first: bool) -> None:
    """Of what happens at the same time, that of the thread with the smaller number comes first."""
    k = Builder(uniform(2))
    lock = k.spinlock("l")
    with k.thread("daemon", daemon=True) as daemon, k.lock(lock):  # it has it at 120 ns
        k.count("had")
        k.work(10)
    with k.thread("ends") as ends:
        k.work(120)
    for body in (daemon, ends) if first else (ends, daemon):
        k.spawn(body, 0 if body is daemon else 1)
    result = checked(k.finish(), uniform(2))
    assert result.sim_ns == 120
    assert result.metrics["had"] == stats(result).acquisitions == int(first)
