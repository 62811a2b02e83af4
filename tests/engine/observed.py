"""What the virtual machine's state says about a run, in the form of the reference."""

from __future__ import annotations

from zexp.engine.sim import state as st
from zexp.engine.sim import vm
from zexp.engine.sim.engine import prepare
from zexp.machine import Machine
from zexp.program import Program

from .reference import LockFigures, Outcome


def finished_state(program: Program, machine: Machine, seed: int = 0, budget: int = 1 << 40) -> st.State:
    """Run to the end, ``budget`` instructions at a time."""
    state = prepare(program, machine, seed)
    while (status := vm.run(state, budget)) == st.SLICE:
        pass
    assert status == st.DONE, f"status {status}"
    vm.settle(state)
    return state


def outcome_of(program: Program, state: st.State) -> Outcome:
    profile: dict[tuple[str, tuple[str, ...]], int] = {}
    for group, comm in enumerate(program.comms):
        for frame in range(len(program.frames)):
            ps = int(state.profile[group, frame])
            if ps:
                key = comm, program.stack(frame)
                assert key not in profile
                profile[key] = ps
    lines: dict[int, tuple[int, int]] = {}
    for variable, (n, ps) in zip(program.line_variable.tolist(), state.line_stat.tolist(), strict=True):
        if n:
            before = lines.get(variable, (0, 0))
            lines[variable] = before[0] + n, before[1] + ps
    locks = [
        LockFigures(
            stat[st.S_ACQUIRED],
            stat[st.S_CONTENDED],
            stat[st.S_WAIT_NS],
            tuple(stat[st.WAIT_BUCKETS : st.HOLD_BUCKETS]),
            stat[st.S_HOLD_NS],
            tuple(stat[st.HOLD_BUCKETS : st.LOCK_STATS]),
        )
        for stat in state.lock_stat.tolist()
    ]
    registers, offset = [], 0
    for thread in program.threads:
        registers.append(state.registers[offset : offset + len(thread.registers)].tolist())
        offset += len(thread.registers)
    return Outcome(
        end_ps=int(state.scalars[st.G_END]),
        instructions=int(state.scalars[st.G_EXECUTED]),
        profile=profile,
        metrics={name: int(state.metric[i, 0]) for i, name in enumerate(program.metrics)},
        histograms={
            name: (tuple(state.histogram[i, :64].tolist()), int(state.histogram[i, 64]))
            for i, (name, _) in enumerate(program.histograms)
        },
        locks=locks,
        lines=lines,
        off_cpu=state.thread[:, st.T_OFF_CPU].tolist(),
        cells=state.cells.tolist(),
        registers=registers,
    )


def simulate(program: Program, machine: Machine, seed: int = 0, budget: int = 1 << 40) -> Outcome:
    return outcome_of(program, finished_state(program, machine, seed, budget))
