"""The kernel model, one module per kernel file it stands for."""

from zexp.kernel.builder import PAGE_BYTES, KernelBuilder
from zexp.kernel.config import Compressor, Cost, KernelConfig
from zexp.kernel.mm import Mm, Owner
from zexp.kernel.policy import PoolAccounting
from zexp.kernel.zsmalloc import Pool
from zexp.kernel.zswap import Zswap

__all__ = [
    "PAGE_BYTES",
    "Compressor",
    "Cost",
    "KernelBuilder",
    "KernelConfig",
    "Mm",
    "Owner",
    "Pool",
    "PoolAccounting",
    "Zswap",
]
