from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zexp.engine.sim import run
from zexp.engine.sim import state as sim
from zexp.machine import Machine
from zexp.program import Program
from zexp.program.isa import Op
from zexp.result import Log2Histogram

from .observed import finished_state, outcome_of, simulate
from .programs import Case, cases, write
from .reference import Line, Lock, Outcome, Reference, Thread, interpret

COMMON = settings(
    deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck), print_blob=False
)
DEFAULT = settings(COMMON, max_examples=600)
FEW = settings(COMMON, max_examples=200)
MANY = settings(COMMON, max_examples=5000, derandomize=False)
SEEDS = st.integers(0, 1 << 32)
BUDGETS = st.integers(1, 1000)


def check_same(case: Case, seed: int, budget: int = 1 << 40) -> Outcome:
    expected = interpret(case.program, case.machine, seed)
    got = simulate(case.program, case.machine, seed, budget)
    assert got == expected
    for klass, figures in zip(case.program.lock_classes, got.locks, strict=True):
        assert got.metrics.get(f"acquired/{klass.name}", 0) == figures.acquired
    return got


@given(cases(), SEEDS)
@DEFAULT
def test_random_programs(case: Case, seed: int) -> None:
    check_same(case, seed)


@given(cases(wide=True), SEEDS)
@FEW
def test_random_programs_on_more_than_64_cpus(case: Case, seed: int) -> None:
    check_same(case, seed)


@given(cases(), SEEDS, st.integers(1, 7))
@DEFAULT
def test_stopping_and_resuming_changes_nothing(case: Case, seed: int, budget: int) -> None:
    check_same(case, seed, budget)


@given(st.booleans().flatmap(lambda random: cases(random=random, horizon=True)), SEEDS)
@DEFAULT
def test_random_programs_with_a_horizon(case: Case, seed: int) -> None:
    outcome = check_same(case, seed)
    assert case.program.horizon_ns is not None
    assert outcome.end_ps <= case.program.horizon_ns * 1000


@given(cases(horizon=True), SEEDS, st.integers(1, 7))
@FEW
def test_stopping_and_resuming_changes_nothing_before_a_horizon(case: Case, seed: int, budget: int) -> None:
    check_same(case, seed, budget)


@given(cases(), SEEDS, st.data())
@FEW
def test_a_horizon_anywhere_in_a_run(case: Case, seed: int, data: st.DataObject) -> None:
    """Also one that is exactly, or just beside, the end the run has anyway."""
    end_ns = -(-simulate(case.program, case.machine, seed).end_ps // 1000)
    near = st.integers(max(end_ns - 1, 1), end_ns + 1)
    horizon = data.draw(near | st.integers(1, max(end_ns, 1)))
    check_same(replace(case, program=replace(case.program, horizon_ns=horizon)), seed)


@pytest.mark.slow
@given(st.tuples(st.booleans(), st.booleans()).flatmap(lambda two: cases(two[0], horizon=two[1])), SEEDS, BUDGETS)
@MANY
def test_many_random_programs(case: Case, seed: int, budget: int) -> None:
    check_same(case, seed, budget)


@given(st.booleans().flatmap(lambda horizon: cases(horizon=horizon)), SEEDS)
@DEFAULT
def test_every_picosecond_of_a_thread_is_accounted_for(case: Case, seed: int) -> None:
    # A comm a thread, so that the profile tells the threads apart.
    threads = tuple(replace(t, comm=f"thread{i}") for i, t in enumerate(case.program.threads))
    program = replace(case.program, threads=threads)
    state = finished_state(program, case.machine, seed)
    outcome = outcome_of(program, state)
    for number, thread in enumerate(threads):
        on_cpu = sum(ps for (comm, _), ps in outcome.profile.items() if comm == thread.comm)
        end = outcome.end_ps
        if state.thread[number, sim.T_STATE] == sim.HALTED:
            end = min(end, int(state.thread[number, sim.T_TIME]))
        assert on_cpu + outcome.off_cpu[number] == max(end - thread.start_ns * 1000, 0)
    assert all(ps > 0 for ps in outcome.profile.values())


@given(cases(), SEEDS)
@FEW
def test_two_runs_are_equal(case: Case, seed: int) -> None:
    assert simulate(case.program, case.machine, seed) == simulate(case.program, case.machine, seed)


@given(cases(random=False), SEEDS, SEEDS)
@FEW
def test_the_seed_matters_only_to_random_draws(case: Case, seed: int, other: int) -> None:
    assert not case.random
    assert simulate(case.program, case.machine, seed) == simulate(case.program, case.machine, other)


@given(cases(daemons=False), SEEDS)
@FEW
def test_in_the_end_all_locks_are_free_and_all_queues_empty(case: Case, seed: int) -> None:
    assert case.ends
    state = finished_state(case.program, case.machine, seed)
    assert (state.thread[:, sim.T_STATE] == sim.HALTED).all()
    for column in (sim.L_HOLDER, sim.L_HEAD, sim.L_SLEEP_HEAD):
        assert (state.lock[:, column] == -1).all()
    assert (state.queue[:, 0] == -1).all()
    assert (state.thread[:, sim.T_MUTEXES] == 0).all()
    for figures in outcome_of(case.program, state).locks:
        assert sum(figures.wait_buckets) == figures.contended <= figures.acquired == sum(figures.hold_buckets)


@given(cases(), SEEDS)
@FEW
def test_a_run_result_says_the_same(case: Case, seed: int) -> None:
    program, outcome = case.program, simulate(case.program, case.machine, seed)
    result = run(program, case.machine, seed=seed)
    assert result.engine == "sim"
    assert result.sim_ns == outcome.end_ps / 1000
    assert result.instructions == outcome.instructions
    assert {(s.comm, s.stack): s.self_ps for s in result.profile.stacks} == outcome.profile
    assert result.metrics == {name: float(total) for name, total in outcome.metrics.items()}
    assert [(h.counts, h.total) for h in result.histograms.values()] == list(outcome.histograms.values())
    assert list(result.histograms) == [name for name, _ in program.histograms]
    for stats, figures, klass in zip(result.locks, outcome.locks, program.lock_classes, strict=True):
        assert (stats.name, stats.acquisitions, stats.contended) == (klass.name, figures.acquired, figures.contended)
        assert stats.wait_ns == Log2Histogram("ns", figures.wait_buckets, figures.wait_ns)
        assert stats.hold_ns == Log2Histogram("ns", figures.hold_buckets, figures.hold_ns)
    expected = [(program.variables[v].name, n, ps / 1000) for v, (n, ps) in sorted(outcome.lines.items())]
    assert [(line.name, line.transfers, line.transfer_ns) for line in result.lines] == expected


class Observed(Reference):
    """Counts how often the interesting things happen."""

    def __init__(self, program: Program, machine: Machine, seed: int) -> None:
        super().__init__(program, machine, seed)
        self.reached: Counter[str] = Counter()

    def left_cpu(self, owner: Thread, now: int) -> None:
        self.reached["spinners parked"] += sum(
            len(lock.spinning) for lock in self.locks if lock.mutex and lock.holder is owner
        )
        super().left_cpu(owner, now)

    def release(self, thread: Thread, lock: Lock, now: int) -> int:
        if lock.sleeping and lock.spinning:
            self.reached["handed to a sleeper" if lock.hand_to_sleeper else "stolen from a sleeper"] += 1
        return super().release(thread, lock, now)

    def locked_on(self, thread: Thread, line: Line, now: int) -> int:
        self.reached["stores waited for"] += thread.stores_done > now
        return super().locked_on(thread, line, now)

    def execute(self, thread: Thread) -> None:
        self.reached["woken"] += thread.woken and self.code[thread.pc][0] == Op.JUMP
        super().execute(thread)


def test_random_programs_reach_what_they_are_meant_to_reach() -> None:
    """The generator is worth nothing if its programs do not contend, park, hand over, wait and share."""
    reached: Counter[str] = Counter()
    for seed in range(500):
        case = write(seed, 45)
        reference = Observed(case.program, case.machine, seed)
        outcome = reference.run()
        reached += reference.reached
        reached["contended"] += sum(lock.contended for lock in outcome.locks)
        reached["lines moved"] += sum(n for n, _ in outcome.lines.values())
        reached["slept"] += sum(ps > 0 for ps in outcome.off_cpu)
        reached["daemons"] += not case.ends
        reached["random"] += case.random
        reached["bulk accesses"] += int(np.isin(case.program.code[:, 0], (Op.FILL, Op.COPY)).sum())
        case = write(seed, 45, horizon=True)
        reference = Observed(case.program, case.machine, seed)
        outcome = reference.run()
        assert case.program.horizon_ns is not None
        reached["cut by the horizon"] += outcome.end_ps == case.program.horizon_ns * 1000
        reached["only daemons"] += all(t.daemon for t in case.program.threads)
        taking = [t.taking for t in reference.threads if t.taking is not None]
        reached["lock granted too late"] += sum(t.wait_ns is not None for t in taking)
        reached["lock taken too late"] += sum(t.wait_ns is None for t in taking)
    least = {
        "contended": 1000, "lines moved": 1000, "slept": 100, "daemons": 50, "random": 50, "spinners parked": 20,
        "stolen from a sleeper": 5, "handed to a sleeper": 5, "woken": 50, "stores waited for": 100,
        "cut by the horizon": 150, "only daemons": 100, "lock granted too late": 10, "lock taken too late": 5,
        "bulk accesses": 500,
    }  # fmt: skip
    assert all(reached[what] >= n for what, n in least.items()), reached
