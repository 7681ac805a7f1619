"""Which operator of torch does what to known values: one table, by rule (`rules`, `shapes`,
`plausible`).

Names are those of `torch.ops.aten`, with their overloads, 2.4 to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

OPERATORS = {
    # Computed where the values of all their tensors are known: each element from one of each
    # argument...
    "rules.by_element": """
        eq.Scalar eq.Tensor ne.Scalar ne.Tensor lt.Scalar lt.Tensor le.Scalar le.Tensor gt.Scalar
        gt.Tensor ge.Scalar ge.Tensor logical_not logical_and logical_or bitwise_not
        bitwise_and.Tensor bitwise_or.Tensor isnan isinf bitwise_and.Scalar bitwise_or.Scalar
        bitwise_xor.Scalar clone where.self floor_divide remainder.Scalar remainder.Tensor
        add.Scalar add.Tensor sub.Scalar sub.Tensor rsub.Scalar rsub.Tensor mul.Scalar mul.Tensor
        div.Scalar div.Tensor div.Scalar_mode div.Tensor_mode neg abs reciprocal pow.Tensor_Scalar
        pow.Tensor_Tensor pow.Scalar sqrt rsqrt exp log sin cos floor ceil round trunc sign minimum
        maximum clamp clamp_min clamp_max logical_xor bitwise_xor.Tensor
        masked_fill.Scalar
        masked_fill.Tensor
    """,
    # ...or not.
    "rules.as_a_whole": """
        sum sum.dim_IntList max min amax amin all all.dim any any.dim count_nonzero
        count_nonzero.dim_IntList cumsum prod cat stack index_select gather repeat flip roll
        _is_all_true _is_any_true median nanmedian median.dim argmax argmin isin.Tensor_Tensor
        isin.Tensor_Scalar
    """,
    # The same of those that write to their first.
    "rules.in_place": """
        add_.Scalar add_.Tensor sub_.Scalar sub_.Tensor mul_.Scalar mul_.Tensor div_.Scalar
        div_.Tensor neg_ clamp_ clamp_min_ clamp_max_ logical_not_ logical_and_ logical_or_
        __iand__.Tensor __ior__.Tensor bitwise_and_.Tensor bitwise_or_.Tensor masked_fill_.Scalar
        masked_fill_.Tensor
    """,
    # After these their first is not known, not even as the `x.data` of a tensor that has another
    # version counter.
    "rules.over": """
        random_ random_.from random_.to uniform_ normal_ bernoulli_.float bernoulli_.Tensor
        exponential_ masked_scatter_ scatter_add_ index_fill_.int_Scalar index_copy_ index_add_
    """,
    "rules.scatter_": "scatter_.src scatter_.value",
    "rules.triangle": "triu tril",
    # Reading and writing.
    "rules.local_scalar_dense": "_local_scalar_dense",
    "rules.to_copy": "_to_copy",
    "rules.equal": "equal",
    "rules.copy_": "copy_",
    "rules.fill_": "fill_.Scalar",
    "rules.fill_with": "fill_.Tensor",
    "rules.zero_": "zero_",
    "rules.foreach_add_": "_foreach_add_.Scalar",
    "rules.foreach_add_of": "_foreach_add_.Tensor",
    "rules.unscaled": "_amp_foreach_non_finite_check_and_unscale_",
    "rules.scale_updated": "_amp_update_scale_",
    # What is made up where values are not known.
    "plausible.topk": "topk",
    "plausible.sort": "sort sort.stable",
    "plausible.multinomial": "multinomial",
    "plausible.normal": "normal.Tensor_Tensor normal.Tensor_float normal.float_Tensor",
    # Their result has a shape that follows from values.
    "shapes.nonzero": "nonzero",
    "shapes.masked_select": "masked_select",
    "shapes.unique2": "_unique2",
    "shapes.unique_consecutive": "unique_consecutive",
    "shapes.unique_dim": "unique_dim",
    "shapes.coalesce": "_coalesce",
    "shapes.bincount": "bincount",
    "shapes.repeat_interleave": "repeat_interleave.Tensor",
    "shapes.index": "index.Tensor",
    "shapes.index_put_": "index_put_ _index_put_impl_",
}

OF_SEVERAL = {
    "rules.by_element",
    "rules.as_a_whole",
    "rules.in_place",
    "rules.over",
    "rules.scatter_",
    "rules.triangle",
    "rules.scale_updated",
    "plausible.sort",
}
"""Kernels that are given the operator first."""

WRITING = {"rules.in_place", "rules.over", "rules.scatter_"}
"""Kernels of operators that write to their first argument and give it."""

OF_THE_DEVICE = {"aten::_local_scalar_dense"}
"""Operators that need no kernel of ours for tensors on the host."""


def of(aten: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield (rule, name, operator) for each operator of the table; the last is None where torch has
    none so named.
    """
    for rule, names in OPERATORS.items():
        for name in names.split():
            packet, _, overload = name.partition(".")
            yield rule, name, getattr(getattr(aten, packet, None), overload or "default", None)
