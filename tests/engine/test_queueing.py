"""The machine's locks and wait queues against the closed forms of queueing theory.

All hardware costs nothing here, so that a lock is nothing but a queue with one server.
"""

from __future__ import annotations

from math import factorial

import pytest

from zexp.engine.sim import run
from zexp.program import MUTEX, SPINLOCK, Builder, LockKind
from zexp.result import RunResult

from .machines import free

EVENTS = 1_000_000
RING = 1 << 16
SERVICE = 10_000  # ns


def open_queue(servers: int, load: float, customers: int, seed: int) -> RunResult:
    """M/M/c: Poisson arrivals join a wait queue; ``c`` threads serve them in order."""
    k = Builder(free(servers + 1))
    arrived, taken = k.bookkeeping("arrived", 1)[0], k.bookkeeping("taken", 1)[0]
    when, queue = k.bookkeeping("when", RING), k.wait_queue("queue")
    lock = k.spinlock("lock")
    with k.thread("arrivals") as arrivals:
        number = k.local(0)
        with k.for_range(customers):
            k.sleep_ns(k.rand_exp(round(SERVICE / (load * servers))))
            k.store(when[number & (RING - 1)], k.now_ns())
            number.set(k.atomic_add(arrived))
            k.wake(queue, 1)
        # One customer too many for each server: they all go home.
        k.store(arrived, number + servers)
        k.wake(queue)
    with k.thread("server") as server:
        done = k.local(0)
        with k.while_(lambda: done == 0):
            k.wait_event(queue, lambda: k.load(arrived) > k.load(taken))
            mine = k.local(-1)
            with k.lock(lock), k.if_(k.load(arrived) > k.load(taken)):
                mine.set(k.atomic_add(taken) - 1)
            with k.if_(mine >= customers):
                done.set(1)
            with k.else_(), k.if_(mine >= 0):
                k.count("wait_ns", k.now_ns() - k.load(when[mine & (RING - 1)]))
                with k.func("serve"):
                    k.busy_ns(k.rand_exp(SERVICE))
                k.count("time_in_system_ns", k.now_ns() - k.load(when[mine & (RING - 1)]))
                k.count("served")
    k.spawn(arrivals, 0)
    for i in range(servers):
        k.spawn(server, i + 1)
    return run(k.finish(), free(servers + 1), seed=seed)


def erlang_c(servers: int, load: float) -> float:
    """Probability that a customer of M/M/c has to wait."""
    offered = servers * load
    all_busy = offered**servers / factorial(servers) / (1 - load)
    return all_busy / (sum(offered**n / factorial(n) for n in range(servers)) + all_busy)


@pytest.mark.parametrize(
    ("servers", "load", "customers"),
    [(1, 0.3, EVENTS), (1, 0.5, EVENTS), (1, 0.7, 2 * EVENTS), (2, 0.6, EVENTS), (4, 0.7, EVENTS)],
)
def test_m_m_c(servers: int, load: float, customers: int) -> None:
    result = open_queue(servers, load, customers, seed=1)
    metrics = result.metrics
    assert metrics["served"] == customers
    wait = erlang_c(servers, load) * SERVICE / (servers * (1 - load))
    assert metrics["wait_ns"] / customers == pytest.approx(wait, rel=0.02)
    assert metrics["time_in_system_ns"] / customers == pytest.approx(wait + SERVICE, rel=0.02)
    # Mean queue length: customer-ns of waiting over ns.
    assert metrics["wait_ns"] / result.sim_ns == pytest.approx(wait * load * servers / SERVICE, rel=0.02)
    assert result.profile.self_ps("serve") / 1000 / result.sim_ns == pytest.approx(load * servers, rel=0.02)
    if servers == 1:
        assert wait == pytest.approx(SERVICE * load / (1 - load))


def repairman(customers: int, think: float, servers: int = 1) -> tuple[float, float, float]:
    """Of M/M/c with N customers who think in between: throughput, mean wait, busy servers. In service times."""
    weights = [1.0]
    for n in range(1, customers + 1):
        weights.append(weights[-1] * (customers - n + 1) / think / min(n, servers))
    total = sum(weights)
    busy = sum(min(n, servers) * w for n, w in enumerate(weights)) / total
    waiting = sum(max(n - servers, 0) * w for n, w in enumerate(weights)) / total
    return busy, waiting / busy, busy


CLOSED = [(1, 3.0), (2, 2.0), (4, 4.0), (8, 10.0), (16, 4.0), (70, 200.0)]


@pytest.mark.parametrize("kind", [SPINLOCK, MUTEX], ids=["spinlock", "mutex"])
@pytest.mark.parametrize(("customers", "think"), CLOSED)
def test_machine_repairman(kind: LockKind, customers: int, think: float) -> None:
    machine = free(customers)
    k = Builder(machine)
    lock, left = k.locks("server", 1, kind)[0], k.bookkeeping("left", 1, init=[EVENTS])[0]
    with k.thread("customer") as customer, k.while_(lambda: k.load(left) > 0):
        k.atomic_add(left, -1)
        k.sleep_ns(k.rand_exp(round(think * SERVICE)))
        with k.lock(lock), k.func("serve"):
            k.busy_ns(k.rand_exp(SERVICE))
    for cpu in range(customers):
        k.spawn(customer, cpu)
    result = run(k.finish(), machine, seed=2)
    throughput, wait, busy = repairman(customers, think)
    stats = result.locks[0]
    assert stats.acquisitions == EVENTS == stats.hold_ns.count
    assert stats.acquisitions / result.sim_ns * SERVICE == pytest.approx(throughput, rel=0.02)
    assert stats.wait_ns.total / stats.acquisitions / SERVICE == pytest.approx(wait, rel=0.02, abs=1e-9)
    assert stats.hold_ns.mean == pytest.approx(SERVICE, rel=0.02)
    assert result.profile.self_ps("serve") / 1000 / result.sim_ns == pytest.approx(busy, rel=0.02)
    # Who waits spins, in the queue or on the owner: mean number of spinners.
    frames = (kind.queue, kind.spin) if kind.mutex else (kind.queue,)
    spinning = sum(result.profile.self_ps(frame) for frame in frames) / 1000
    assert spinning == pytest.approx(stats.wait_ns.total, rel=0.001)
    if kind.mutex:  # one spins on the owner whenever anybody waits
        weights = [1.0]
        for n in range(1, customers + 1):
            weights.append(weights[-1] * (customers - n + 1) / think)
        anybody = sum(weights[2:]) / sum(weights)
        assert result.profile.self_ps(kind.spin) / 1000 / result.sim_ns == pytest.approx(anybody, rel=0.02, abs=1e-9)


def test_a_saturated_lock_serves_at_its_own_pace() -> None:
    """16 customers who think for four service times: the server is busy all the time."""
    throughput, wait, busy = repairman(16, 4.0)
    assert busy > 0.9999
    assert wait == pytest.approx(16 - 4 - 1, rel=0.001)
    assert throughput == pytest.approx(1, rel=0.001)


@pytest.mark.parametrize(("customers", "servers", "think"), [(6, 2, 3.0), (12, 4, 2.0)])
def test_repairmen_behind_a_semaphore(customers: int, servers: int, think: float) -> None:
    """Several servers: a counter of free ones, guarded by a lock, and a wait queue."""
    machine = free(customers)
    k = Builder(machine)
    idle, queue, lock = k.bookkeeping("idle", 1, init=[servers])[0], k.wait_queue("queue"), k.spinlock("lock")
    left = k.bookkeeping("left", 1, init=[EVENTS])[0]
    with k.thread("customer") as customer, k.while_(lambda: k.load(left) > 0):
        k.atomic_add(left, -1)
        k.sleep_ns(k.rand_exp(round(think * SERVICE)))
        asked, mine = k.now_ns(), k.local(0)
        with k.while_(lambda: mine == 0):
            k.wait_event(queue, lambda: k.load(idle) > 0)
            with k.lock(lock), k.if_(k.load(idle) > 0):
                k.atomic_add(idle, -1)
                mine.set(1)
        k.count("wait_ns", k.now_ns() - asked)
        with k.func("serve"):
            k.busy_ns(k.rand_exp(SERVICE))
        k.atomic_add(idle, 1)
        k.wake(queue)
    for cpu in range(customers):
        k.spawn(customer, cpu)
    result = run(k.finish(), machine, seed=3)
    throughput, wait, busy = repairman(customers, think, servers)
    assert EVENTS / result.sim_ns * SERVICE == pytest.approx(throughput, rel=0.02)
    assert result.metrics["wait_ns"] / EVENTS / SERVICE == pytest.approx(wait, rel=0.02)
    assert result.profile.self_ps("serve") / 1000 / result.sim_ns == pytest.approx(busy, rel=0.02)


def test_exponential_and_uniform_draws() -> None:
    """Mean, second moment, tail and median of a million draws, and the mean of uniform ones."""
    k = Builder(free(1))
    mean, bound = 1_000_000, 1000
    with k.thread("t") as body, k.for_range(EVENTS):
        x = k.rand_exp(mean)
        k.count("x", x)
        k.count("x2", x * x >> 20)
        k.count("below ln 2", x < 693_147)
        k.count("above 5", x > 5 * mean)
        k.observe("x", x)
        u = k.rand_int(bound)
        k.count("u", u)
        k.count("u = 7", u == 7)
        k.count("out of range", (u < 0) | (u >= bound))
    k.spawn(body, 0)
    metrics = run(k.finish(), free(1), seed=4).metrics
    assert metrics["x"] / EVENTS == pytest.approx(mean, rel=0.004)
    assert metrics["x2"] / EVENTS * 2**20 == pytest.approx(2 * mean**2, rel=0.01)
    assert metrics["below ln 2"] / EVENTS == pytest.approx(0.5, rel=0.005)
    assert metrics["above 5"] / EVENTS == pytest.approx(0.0067379, rel=0.05)
    assert metrics["u"] / EVENTS == pytest.approx((bound - 1) / 2, rel=0.004)
    assert metrics["u = 7"] / EVENTS == pytest.approx(1 / bound, rel=0.15)
    assert metrics["out of range"] == 0
