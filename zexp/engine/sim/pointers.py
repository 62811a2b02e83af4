"""Raw pointers for the compiled virtual machine.

Numba counts references on every array it passes and corrects negative indices on every access; both cost more than the
interpreter's own work. The virtual machine therefore takes the addresses of its arrays once a slice. The arrays are
kept alive by the caller, and every index a program can choose is checked before it is used.

The addresses themselves stand in a tuple, which ``reference`` puts in memory: functions then pass one pointer instead
of some forty values, and read ``v.name`` through it.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    infer_getattr,
    intrinsic,
    lower_getattr_generic,
    register_model,
)


def _pointer_to(numba_type):
    @intrinsic
    def pointer(typingctx, address):
        def codegen(context, builder, signature, args):
            return builder.inttoptr(args[0], context.get_value_type(numba_type).as_pointer())

        return types.CPointer(numba_type)(address), codegen

    return pointer


int64_pointer = _pointer_to(types.int64)
uint64_pointer = _pointer_to(types.uint64)


class Reference(types.Type):
    """A pointer to a named tuple, whose fields can be read as attributes."""

    def __init__(self, target):
        self.target = target
        super().__init__(f"Reference({target})")


@register_model(Reference)
class ReferenceModel(models.PrimitiveModel):
    """It is one address."""

    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, dmm.lookup(fe_type.target).get_value_type().as_pointer())


@infer_getattr
class ReferenceAttributes(AttributeTemplate):
    """Fields have the types they have in the tuple."""

    key = Reference

    def generic_resolve(self, reference, name):
        """The type of one field, None if there is no such field."""
        fields = reference.target.fields
        return reference.target.types[fields.index(name)] if name in fields else None


@lower_getattr_generic(Reference)
def read_field(context, builder, reference, value, name):
    """One load. No other pointer leads to the tuple, so what is read once need not be read again after every store."""
    for argument in builder.function.args:
        if argument.type == value.type:
            argument.add_attribute("noalias")
    return builder.load(cgutils.gep_inbounds(builder, value, 0, reference.target.fields.index(name)))


@intrinsic
def reference(typingctx, values):
    """Put a named tuple on the caller's stack; the reference is good until the caller returns."""

    def codegen(context, builder, signature, args):
        return cgutils.alloca_once_value(builder, args[0])

    return Reference(values)(values), codegen


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
