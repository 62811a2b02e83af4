"""Scenarios small enough to verify with a pencil.

On these machines a cycle takes 1 ns, a load that hits 4 ns, a locked instruction on an owned line 20 ns, issuing a
store 1 ns, a wake-up 1000 ns.
"""

from __future__ import annotations

import pytest

from zexp.engine.sim import run
from zexp.machine import Machine
from zexp.program import Builder, Program
from zexp.result import LockStats, RunResult

from .machines import machine, uniform
from .observed import simulate
from .reference import interpret

NS = 1000  # ps

# CPU 0, 1 share an L3, CPU 2 has another on the same node, CPU 3 is on another node. A line needs 10 ns from neighbour
# to neighbour, and from the row's CPU to the column's as many ns as it says here.
FOUR = machine(
    [
        [0, 10, 50, 91],
        [10, 0, 51, 92],
        [50, 51, 0, 93],
        [94, 95, 96, 0],
    ],
    memory_ns=[[100, 200], [200, 100]],
    l3_of=[0, 0, 1, 2],
    node_of=[0, 0, 0, 1],
)


def checked(program: Program, machine: Machine) -> RunResult:
    assert simulate(program, machine) == interpret(program, machine)
    return run(program, machine)


def lock_stats(result: RunResult, name: str) -> LockStats:
    return next(lock for lock in result.locks if lock.name == name)


def reader_after(earlier: list[int], cpu: int, home: int = 0) -> int:
    """Time in ns of a load on ``cpu`` after loads on ``earlier`` CPUs, long enough one after the other."""
    k = Builder(FOUR)
    x = k.var("x", home=home)
    for i, other in enumerate([*earlier, cpu]):
        last = i == len(earlier)
        with k.thread("last" if last else "earlier") as body:
            k.load(x)
        k.spawn(body, other, 1000 * i)
    result = checked(k.finish(), FOUR)
    ps = result.profile.total_ps("last")
    assert result.sim_ns == 1000 * len(earlier) + ps / NS
    assert ps % NS == 0
    return ps // NS


@pytest.mark.parametrize(
    ("earlier", "cpu", "home", "ns"),
    [
        ([], 0, 0, 100 + 4),  # from memory of its node
        ([], 0, 1, 200 + 4),  # from memory of the other node
        ([0], 1, 0, 10 + 4),  # same L3
        ([0], 2, 0, 50 + 4),  # another L3
        ([0], 3, 0, 91 + 4),  # another node: from the row's CPU to the column's
        ([3], 0, 0, 94 + 4),  # and the other way round
        ([2, 0], 1, 0, 10 + 4),  # from the nearest in the same L3, though CPU 2 owns the line
        ([2, 3], 1, 0, 51 + 4),  # nobody in the same L3: from the owner
        ([1, 0], 0, 0, 4),  # a hit
    ],
)
def test_a_load(earlier: list[int], cpu: int, home: int, ns: int) -> None:
    if cpu in earlier:
        k = Builder(FOUR)
        x = k.var("x")
        with k.thread("t"):
            pass
        with k.thread("last") as body:
            k.load(x)
            k.load(x)
        k.spawn(body, cpu)
        assert checked(k.finish(), FOUR).sim_ns == 100 + 4 + ns
    else:
        assert reader_after(earlier, cpu, home) == ns


def one_thread(write: object) -> RunResult:
    k = Builder(uniform(1))
    x, y = k.var("x"), k.var("y")
    with k.thread("t") as body:
        write(k, x, y)  # type: ignore[operator]
    k.spawn(body, 0)
    return checked(k.finish(), uniform(1))


def test_a_store_is_overlapped_by_work() -> None:
    # The store is issued in 1 ns; its line comes at 100 ns, while the CPU computes.
    assert one_thread(lambda k, x, y: (k.store(x, 1), k.work(300))).sim_ns == 1 + 300
    # Nobody waits for it even at the end of the thread.
    assert one_thread(lambda k, x, y: k.store(x, 1)).sim_ns == 1


def test_an_atomic_waits_for_the_store_before_it() -> None:
    # x comes at 100 ns, only then is y asked for, which comes at 200; the locked instruction takes 20.
    result = one_thread(lambda k, x, y: (k.store(x, 1), k.atomic_add(y)))
    assert result.sim_ns == 200 + 20
    assert [(line.name, line.transfers, line.transfer_ns) for line in result.lines] == [("x", 1, 100), ("y", 1, 100)]
    # To the same line: 100 for the line, 20 for the instruction.
    assert one_thread(lambda k, x, y: (k.store(x, 1), k.atomic_add(x))).sim_ns == 100 + 20
    # A load of the stored value is forwarded from the buffer.
    assert one_thread(lambda k, x, y: (k.store(x, 1), k.load(x))).sim_ns == 1 + 4


def test_a_full_store_buffer_stalls() -> None:
    # Four entries. The stores complete at 100, 200, 300, 400; the fifth waits for the first: it is issued at 100.
    k = Builder(uniform(1))
    lines = k.array("lines", 5)
    with k.thread("t") as body:
        for i in range(5):
            k.store(lines[i], i)
    k.spawn(body, 0)
    result = checked(k.finish(), uniform(1))
    assert result.sim_ns == 100 + 1
    assert result.lines[0].transfer_ns == 5 * 100


def test_two_cpus_ping_pong_a_line() -> None:
    k = Builder(uniform(2))
    x = k.var("x")
    with k.thread("t") as body, k.for_range(3):
        k.atomic_add(x)
    k.spawn(body, 0)
    k.spawn(body, 1)
    result = checked(k.finish(), uniform(2))
    # CPU 0: 0..100 memory, ..120 add. CPU 1 asks at 0, the line is busy until 120: ..170 transfer, ..190 add.
    # CPU 0 asks at 120: 190..240, ..260; CPU 1 at 190: ..330; CPU 0 at 260: ..400; CPU 1 at 330: ..470.
    assert result.sim_ns == 470
    assert (result.lines[0].transfers, result.lines[0].transfer_ns) == (6, 100 + 170 + 4 * (70 + 50))
    assert result.profile.total_ps("t") == (400 + 470) * NS


def test_false_sharing() -> None:
    # Two variables on one line, each used by one CPU: as slow as one variable used by both.
    k = Builder(uniform(2))
    with k.line("both"):
        x = k.array("x", 2)
    with k.thread("t") as body, k.for_range(3):
        k.atomic_add(x[k.cpu])
    k.spawn(body, 0)
    k.spawn(body, 1)
    result = checked(k.finish(), uniform(2))
    assert result.sim_ns == 470
    # On lines of their own: memory once, then three locked instructions.
    k = Builder(uniform(2))
    y = k.per_cpu("y")
    with k.thread("t") as body, k.for_range(3):
        k.atomic_add(y.mine)
    k.spawn(body, 0)
    k.spawn(body, 1)
    assert checked(k.finish(), uniform(2)).sim_ns == 100 + 3 * 20


def test_a_convoy_of_three_threads() -> None:
    k = Builder(uniform(3))
    lock = k.spinlock("lock")
    with k.thread("t") as body, k.func("f"), k.lock(lock):
        k.work(1000)
    for cpu in range(3):
        k.spawn(body, cpu)
    result = checked(k.finish(), uniform(3))
    # Arrivals: CPU 0 has the lock's line at 100 and the lock at 120. CPU 1 has the line at 170 and queues at 190, CPU 2
    # has it at 240 and queues at 260.
    # CPU 0 computes until 1120; its unlocking store takes the line back, 50 ns: 1170. Handing over takes 50 more.
    # CPU 1: 1220, computes until 2220, owns the line: its store is visible at once; 50 more for CPU 2: 2270, which
    # computes until 3270, unlocks a line it owns; issuing the store takes 1.
    stats = lock_stats(result, "lock")
    assert result.sim_ns == 3270 + 1
    assert (stats.acquisitions, stats.contended) == (3, 2)
    waits = [1220 - 190, 2270 - 260]
    assert stats.wait_ns.total == sum(waits)
    assert [(low, n) for low, _, n in stats.wait_ns.buckets()] == [(1024, 2)]
    holds = [1170 - 120, 2220 - 1220, 3270 - 2270]
    assert stats.hold_ns.total == sum(holds)
    assert [(low, n) for low, _, n in stats.hold_ns.buckets()] == [(512, 2), (1024, 1)]
    profile = result.profile
    assert profile.self_ps("native_queued_spin_lock_slowpath") == sum(waits) * NS
    assert profile.self_ps("_raw_spin_lock") == (120 + 190 + 260) * NS
    assert profile.self_ps("f") == (1000 + 1) * 3 * NS
    assert profile.total_ps() == (1121 + 2221 + 3271) * NS
    spinning = next(row for row in profile.functions() if row.symbol == "native_queued_spin_lock_slowpath")
    assert spinning.self_pct == pytest.approx(100 * 3040 / 6613)
    # Arrival: memory 100; CPU 1 waits 120 and 50; CPU 2 190 and 50. CPU 0 takes it back 50. Two hand-overs of 50.
    assert result.lines[0].transfers == 6
    assert result.lines[0].transfer_ns == 100 + 170 + 240 + 50 + 50 + 50


def test_a_mutex_whose_owner_runs_is_spun_for() -> None:
    k = Builder(uniform(3))
    mutex = k.mutex("mutex")
    with k.thread("t") as body, k.lock(mutex):
        k.work(1000)
    for cpu in range(3):
        k.spawn(body, cpu)
    result = checked(k.finish(), uniform(3))
    # The same times as with the spinlock. CPU 1 is first in the queue and spins on the owner 190..1220; CPU 2 queues
    # until CPU 1 has the mutex, 260..1220, then spins on CPU 1 until 2270.
    assert result.sim_ns == 3271
    assert result.profile.self_ps("mutex_spin_on_owner") == ((1220 - 190) + (2270 - 1220)) * NS
    assert result.profile.self_ps("osq_lock") == (1220 - 260) * NS


def test_a_mutex_whose_owner_sleeps() -> None:
    k = Builder(uniform(2))
    mutex = k.mutex("mutex")
    with k.thread("owner") as owner, k.lock(mutex):
        k.work(1000)
        k.sleep_ns(5000)
        k.work(80)
    with k.thread("waiter") as waiter, k.lock(mutex):
        k.work(10)
    k.spawn(owner, 0)
    k.spawn(waiter, 1)
    result = checked(k.finish(), uniform(2))
    # Owner: has the mutex at 120, computes until 1120, sleeps until 6120, computes until 6200, takes the line back:
    # 6250. Waiter: queues at 190, spins on the owner until 1120, sleeps until it is woken at 6250 + 1000, computes 10,
    # unlocks (the line is still the owner's, nobody handed it over): 1.
    assert result.sim_ns == 7250 + 10 + 1
    profile = result.profile
    assert profile.self_ps("mutex_spin_on_owner") == (1120 - 190) * NS
    assert profile.self_ps("osq_lock") == 0
    assert profile.total_ps("owner") == (120 + 1000 + 80 + 1) * NS
    assert profile.total_ps("waiter") == (190 + 930 + 10 + 1) * NS
    stats = lock_stats(result, "mutex")
    assert (stats.contended, stats.wait_ns.total) == (1, 7250 - 190)
    # Holding: 120..6250 with the sleep, and 7250..7260 and 50 for the line at the end.
    assert stats.hold_ns.total == (6250 - 120) + (7260 + 50 - 7250)
    assert simulate(k.finish(), uniform(2)).off_cpu == [5000 * NS, (7250 - 1120) * NS]


def test_a_spinner_steals_a_mutex_from_a_sleeper_once() -> None:
    k = Builder(uniform(4))
    mutex = k.mutex("mutex")
    with k.thread("t") as body:
        first = body.arg("sleeps")
        with k.lock(mutex):
            with k.if_(first):
                k.sleep_ns(10_000)
            k.work(2000)
        k.observe("finished", k.now_ns())
    k.spawn(body, 0, 0, sleeps=1)
    k.spawn(body, 1, 1000, sleeps=0)  # finds the owner asleep and sleeps
    k.spawn(body, 2, 11_000, sleeps=0)  # finds it running and spins
    k.spawn(body, 3, 11_200, sleeps=0)  # spins behind
    result = checked(k.finish(), uniform(4))
    # CPU 0: has it at 120, sleeps to 10120, works to 12120, takes the line back: 12170. Its UNLOCK ends at 12121.
    # CPU 2 steals it: 12220, works to 14220. It owns the line: visible at once. Now the sleeper is next (handoff):
    # CPU 1 is woken at 15220, works to 17220; CPU 3, which spun, is put to sleep at 14220.
    # CPU 1 takes the line back from CPU 2: 17270. CPU 3 is woken at 18270 and works to 20270.
    assert result.sim_ns == 20_271
    assert result.histograms["finished"].total == 12_121 + 14_221 + 17_221 + 20_271
    # CPU 1 asleep from 1070 (the line comes from CPU 0: 50, and 20); CPU 3 from 14220.
    assert simulate(k.finish(), uniform(4)).off_cpu == [10_000 * NS, (15_220 - 1070) * NS, 0, (18_270 - 14_220) * NS]


def test_waiting_for_an_event() -> None:
    k = Builder(uniform(2))
    flag, queue = k.bookkeeping("flag", 1), k.wait_queue("queue")
    with k.thread("waiter") as waiter:
        k.work(10)
        k.wait_event(queue, lambda: k.load(flag[0]) == 1)
        k.work(5)
    with k.thread("waker") as waker:
        k.work(3000)
        k.wake(queue)  # for nothing: the waiter looks and sleeps again
        k.work(3000)
        k.store(flag[0], 1)
        k.wake(queue)
    k.spawn(waiter, 0)
    k.spawn(waker, 1)
    result = checked(k.finish(), uniform(2))
    assert result.sim_ns == 6000 + 1000 + 5
    assert result.profile.total_ps("waiter") == 15 * NS
    assert simulate(k.finish(), uniform(2)).off_cpu == [6990 * NS, 0]


def test_the_end_cuts_a_wait_that_was_charged_beyond_it() -> None:
    """A spinner that is parked when a slow release becomes visible, after the end, spins only until the end."""
    m = uniform(5)
    k = Builder(m)
    mutex, slow = k.mutex("mutex"), k.array("slow", 4)
    with k.thread("daemon", daemon=True) as body:
        sleeps = body.arg("sleeps")
        with k.lock(mutex):
            with k.if_(sleeps):
                k.sleep_ns(10_000)
            k.work(2000)
            with k.for_each(slow) as each:
                k.store(each, 1)
    k.spawn(body, 0, 0, sleeps=1)
    k.spawn(body, 1, 1000, sleeps=0)
    k.spawn(body, 2, 11_000, sleeps=0)
    k.spawn(body, 3, 11_200, sleeps=0)
    with k.thread("main") as main:
        k.work(1)
    # CPU 0's stores come at 12120 + 400, its unlock at 12570; CPU 2 goes on at 12620 and works to 14620. Its stores
    # come at 14670 .. 14820: then its unlock is visible and CPU 3 goes to sleep. The run ends in between.
    k.spawn(main, 4, 14_700)
    result = checked(k.finish(), m)
    assert result.sim_ns == 14_701
    # CPU 2 spun on CPU 0 from 11070 to 12620; CPU 3 queued from 11270 until then and spun on CPU 2 until the end.
    assert result.profile.self_ps("mutex_spin_on_owner") == ((12_620 - 11_070) + (14_701 - 12_620)) * NS
    assert result.profile.self_ps("__mutex_lock") == (120 + 70 + 70 + 70) * NS


def test_hyperthreads_share_a_core() -> None:
    m = machine([[0, 9, 9], [9, 0, 9], [9, 9, 0]], core_of=[0, 0, 1])
    k = Builder(m)
    with k.thread("t") as body:
        k.work(100)
        k.busy_ns(7)
        k.observe("finished", k.now_ns())
    for cpu in range(3):
        k.spawn(body, cpu)
    result = checked(k.finish(), m)
    # smt_share 0.5: twice the time for cycles, not for busy_ns.
    assert result.histograms["finished"].total == 207 + 207 + 107


def test_filling_and_copying_take_no_time() -> None:
    k = Builder(FOUR)
    source, target = k.bookkeeping("source", 6, [1, 2, 3, 4, 5, 6]), k.bookkeeping("target", 6)
    with k.thread("t") as body:
        began = k.now_ns()
        k.fill(source, 1, body.arg("filled"), 9)
        k.copy(target, source, 0, 4)
        k.fill(target, 6, 0, 7)
        k.count("ns", k.now_ns() - began)
        for i in range(6):
            k.count(f"source{i}", k.load(source[i]))
            k.count(f"target{i}", k.load(target[i]))
    k.spawn(body, 0, filled=2)
    metrics = checked(k.finish(), FOUR).metrics
    assert metrics["ns"] == 0
    assert [metrics[f"source{i}"] for i in range(6)] == [1, 9, 9, 4, 5, 6]
    assert [metrics[f"target{i}"] for i in range(6)] == [1, 9, 9, 4, 0, 0]


def test_memory_read() -> None:
    k = Builder(FOUR)
    with k.thread("t") as body:
        k.memory_read(1, 3)
        k.memory_read(k.node)
    k.spawn(body, 0)
    assert checked(k.finish(), FOUR).sim_ns == 3 * 200 + 100
