"""The processor's prefetch instruction, for compiled loops that know their next reads.

The rows of a mapped file lie on 4 KiB pages. A gather therefore waits for page tables as much as for memory; prefetches hide both waits.
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

_READ, _KEEP, _DATA = 0, 3, 1  # arguments of llvm.prefetch: a read, into all caches, of data


@intrinsic
def prefetch(typing_context: Any, values: Any, index: Any) -> Any:
    """Prefetches the cache line of values[index] of a one-dimensional array. Checks no bounds and returns no value."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        byte_pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte_pointer, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        pointer = builder.bitcast(builder.gep(array.data, [arguments[1]]), byte_pointer)
        builder.call(function, [pointer, number(_READ), number(_KEEP), number(_DATA)])
        return context.get_dummy_value()

    return types.void(values, types.int64), generate
