"""The lock convoy in SimPy: the same model, written as its documentation teaches to write one.

Processes yield timeouts, the lock is a ``Resource``, and two objects say where the lock's and the counter's cache lines
are. Steps that the virtual machine takes apart but that no other thread can see apart are one timeout here. Unlike the
virtual machine this model keeps no profile and no statistics.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass, field

import simpy

Worker = Generator[simpy.Event, object, None]
Latency = list[list[int]]


@dataclass
class Line:
    """A cache line: who has it, and from when on it can be taken away."""

    latency: Latency
    """``latency[to][from]`` in ps."""
    owner: int | None = None
    sharers: set[int] = field(default_factory=set)
    free: float = 0

    def read(self, cpu: int, now: float) -> float:
        """When a read is done."""
        if cpu in self.sharers:
            return now
        if self.owner is None:
            self.owner = cpu
        self.sharers.add(cpu)
        return max(now, self.free) + self.latency[cpu][self.owner]

    def write(self, cpu: int, now: float) -> float:
        """When the CPU owns the line."""
        if self.owner == cpu and len(self.sharers) == 1:
            return now
        self.free = max(now, self.free) + max((self.latency[cpu][other] for other in self.sharers), default=0)
        self.owner, self.sharers = cpu, {cpu}
        return self.free


@dataclass
class Costs:
    """What a thread spends, in ps."""

    critical: int
    outside: int
    hit: int
    atomic: int
    store: int


class Convoy:
    """Threads on some CPUs that lock, work and count, unlock, work outside."""

    def __init__(self, cpus: list[int], loops: int, latency: Latency, costs: Costs) -> None:
        self.cpus, self.loops, self.latency, self.costs = cpus, loops, latency, costs
        self.lock_line, self.counter_line = Line(latency), Line(latency)
        self.counter = 0
        self.released: float = 0
        """When the last release became visible."""
        self.releaser = cpus[0]

    def _worker(self, env: simpy.Environment, lock: simpy.Resource, cpu: int) -> Worker:
        costs, lock_line, counter_line = self.costs, self.lock_line, self.counter_line
        drained: float = 0
        for _ in range(self.loops):
            arrived = lock_line.free = lock_line.write(cpu, max(env.now, drained)) + costs.atomic
            with lock.request() as turn:
                waits = not turn.triggered
                yield env.timeout(arrived - env.now)
                if waits:
                    yield turn
                    lock_line.write(cpu, self.released)
                    lock_line.free = max(self.released, arrived) + self.latency[cpu][self.releaser]
                    yield env.timeout(lock_line.free - env.now)
                yield env.timeout(costs.critical)
                yield env.timeout(counter_line.read(cpu, env.now) + costs.hit - env.now)
                self.counter += 1
                # the store and the unlocking store drain in order while the CPU goes on
                drained = lock_line.write(cpu, counter_line.write(cpu, env.now))
                self.released, self.releaser = drained, cpu
            yield env.timeout(costs.outside + 2 * costs.store)

    def run(self) -> tuple[int, float]:
        """Simulated ps and real seconds."""
        env = simpy.Environment(0)
        lock = simpy.Resource(env)
        for cpu in self.cpus:
            env.process(self._worker(env, lock, cpu))
        started = time.perf_counter()
        env.run()
        return int(env.now), time.perf_counter() - started
