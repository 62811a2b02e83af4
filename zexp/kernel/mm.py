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
from zexp.kernel.zsmalloc import ZsMalloc, size_class
from zexp.kernel.zswap import Zswap
from zexp.program import IntLike, Value

GOLDEN_RATIO_64 = 0x61C8864680B583EB


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


def hash_ptr(slots: int, pools: int) -> npt.NDArray[np.int64]:
    """The zpool of each slot's entry: a multiplicative hash, as zswap picks one by the entry's address."""
    mixed = np.arange(slots, dtype=np.uint64) * np.uint64(GOLDEN_RATIO_64)
    return (((mixed >> np.uint64(33)) * np.uint64(pools)) >> np.uint64(31)).astype(np.int64)


class Mm:
    """zswap over zsmalloc over one swap device, with ``memcgs`` cgroups."""

    def __init__(
        self,
        k: KernelBuilder,
        accounting: PoolAccounting,
        *,
        stored: npt.NDArray[np.bool_],
        memcgs: int,
        object_bytes: int,
        stores: int = 0,
        other_pages: int = 0,
        dynamic: bool = False,
    ) -> None:
        """``stored[slot]``: has an entry at time 0. ``stores``: how many more will be stored at most. ``other_pages``:
        pages of the pool that hold entries nobody touches."""
        slots = len(stored)
        self.shrink_wait = k.wait_queue("zswap shrink_wq")
        self.memcontrol = MemControl(k, memcgs)
        self.list_lru = ListLru(k, memcgs)
        self.zsmalloc = ZsMalloc(k, size_class(object_bytes, k.config.zsmalloc_chain), stores)
        self.zsmalloc.fill(slots, hash_ptr(slots, k.config.zpools), stored, other_pages)
        self.zswap = Zswap(k, self, accounting, slots, int(stored.sum()), dynamic)
        self.swap = SwapFile(k, self, slots)
        self.reclaimed = k.bookkeeping("slots reclaim has passed", memcgs)
        """By memcg: how many of its slots have been offered to zswap."""
