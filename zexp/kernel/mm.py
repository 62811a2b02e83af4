"""The memory management of one simulated kernel: its parts, wired together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zexp.kernel.builder import KernelBuilder
from zexp.kernel.list_lru import ListLru
from zexp.kernel.memcontrol import MemControl
from zexp.kernel.policy import PoolAccounting
from zexp.kernel.swapfile import SwapFile
from zexp.kernel.zsmalloc import ZsMalloc, lay_out
from zexp.kernel.zswap import Zswap
from zexp.program import IntLike, Value


@dataclass(frozen=True)
class Owner:
    """Whose memory is handled: the cgroup to charge, and where its pages lie."""

    memcg: IntLike
    home: IntLike | None
    """NUMA node of its memory; None: interleaved over all nodes by slot."""

    def node(self, k: KernelBuilder, slot: Value) -> IntLike:
        """NUMA node of one slot's page and entry."""
        if self.home is not None:
            return self.home
        return 0 if k.machine.nodes == 1 else slot % k.machine.nodes


class Mm:
    """zswap over zsmalloc over one swap device, with ``memcgs`` cgroups."""

    def __init__(
        self,
        k: KernelBuilder,
        accounting: PoolAccounting,
        *,
        stored: npt.NDArray[np.bool_],
        memcgs: int,
        object_bytes: float,
        object_spread: float,
        stores: int = 0,
        other_pages: int = 0,
        dynamic: bool = False,
    ) -> None:
        """Build everything for ``len(stored)`` slots.

        ``stored[slot]`` says whether the slot has an entry at time 0; sizes are ``object_bytes`` +- that times
        ``object_spread``. At most ``stores`` more will be stored. ``other_pages`` pages hold entries nobody touches.
        """
        slots = len(stored)
        self.shrink_wait = k.wait_queue("zswap shrink_wq")
        self.memcontrol = MemControl(k, memcgs)
        self.list_lru = ListLru(k, memcgs)
        config = k.config
        layout = lay_out(stored, object_bytes, object_spread, config.zpools, config.zsmalloc_chain, other_pages)
        self.zsmalloc = ZsMalloc(k, layout, stores)
        self.zswap = Zswap(k, self, accounting, slots, int(stored.sum()), dynamic)
        self.swap = SwapFile(k, self, slots)
        self.reclaimed = k.bookkeeping("slots reclaim has passed", memcgs)
        """By memcg: how many of its slots have been offered to zswap."""
