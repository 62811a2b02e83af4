"""Fit the four stall constants of kernel v6_8 on the published eager arm.

Run it with the Python zexp is installed in; it prints what conf/kernel/_common.yaml holds. The model is linear: with
stalls ``x`` per call and ``n`` calls a page, a symbol takes ``b + n x`` cycles of a total ``T``. All other symbols
together are known, and make ``1 - S`` of the total, where S is the sum of the fitted shares; so ``T`` is
``(B - sum b) / (1 - S)`` and ``x = (s T - b) / n``.
"""

from __future__ import annotations

from zexp import experiment
from zexp.compose import compose, ready

SYMBOLS = ("zswap_update_total_size", "zpool_get_total_size", "zs_zpool_total_size", "__slab_free")


def fit(size: str = "1GiB") -> dict[str, float]:
    """Stall cycles per call by symbol; ``size`` is how much memory to unmap while finding the base costs."""
    registry = ready()
    cfg = compose(["experiment=munmap_24g", "policy/accounting=eager", f"workload.total_size={size}"])
    zero = [f"kernel.costs.{symbol}.stall_cycles=0" for symbol in SYMBOLS]
    exp = experiment.from_config(
        compose(["experiment=munmap_24g", "policy/accounting=eager", f"workload.total_size={size}", *zero]), registry
    )
    staged = experiment.stage(exp)
    profile = experiment.run(exp, staged).profile
    cycles_per_ps = exp.machine.ghz / 1000 / staged.load.pages
    base = {symbol: profile.self_ps(symbol) * cycles_per_ps for symbol in SYMBOLS}
    calls = {symbol: 1 if symbol == "__slab_free" else exp.kernel.zpools for symbol in SYMBOLS}
    share = {symbol: cfg.published.self_pct.eager[symbol] / 100 for symbol in SYMBOLS}
    known = profile.total_ps() * cycles_per_ps - sum(base.values())
    total = known / (1 - sum(share.values()))
    return {symbol: (share[symbol] * total - base[symbol]) / calls[symbol] for symbol in SYMBOLS}


if __name__ == "__main__":
    for symbol, stall in fit().items():
        print(f"{symbol}: stall_cycles: {stall:.1f}")
