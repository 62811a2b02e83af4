"""The kernel model, one module per kernel file it stands for."""

from zexp.kernel.builder import PAGE_BYTES, KernelBuilder
from zexp.kernel.config import Compressor, Cost, KernelConfig
from zexp.kernel.mm import Mm, Owner
from zexp.kernel.policy import KINDS, FlushStrategy, Policies, Policy, PoolAccounting
from zexp.kernel.zsmalloc import Pool
from zexp.kernel.zswap import Zswap

__all__ = [
    "KINDS",
    "PAGE_BYTES",
    "Compressor",
    "Cost",
    "FlushStrategy",
    "KernelBuilder",
    "KernelConfig",
    "Mm",
    "Owner",
    "Policies",
    "Policy",
    "Pool",
    "PoolAccounting",
    "Zswap",
]
