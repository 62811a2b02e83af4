"""Raw pointers for the compiled virtual machine.

Numba counts references on every array it passes and corrects negative indices on every access; both cost more than the
interpreter's own work. The virtual machine therefore takes the addresses of its arrays once a slice. The arrays are kept
alive by the caller, and every index a program can choose is checked before it is used.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def _pointer_to(numba_type):
    @intrinsic
    def pointer(typingctx, address):
        def codegen(context, builder, signature, args):
            return builder.inttoptr(args[0], context.get_value_type(numba_type).as_pointer())

        return types.CPointer(numba_type)(address), codegen

    return pointer


int64_pointer = _pointer_to(types.int64)
uint64_pointer = _pointer_to(types.uint64)


@intrinsic
def trailing_zeros(typingctx, word):
    """Number of zero bits below the lowest set bit of a word that is not 0."""

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), codegen


@intrinsic
def leading_zeros(typingctx, word):
    """Number of zero bits above the highest set bit of a word that is not 0."""

    def codegen(context, builder, signature, args):
        return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), codegen
