"""Special cases of dispatch: what only some operators, arguments or contexts need.

- Kinds of operators: `foreach`, `composites`, `recurrent`, `grad_scaler`.
- Operators that write: `mutated_arguments`, `inplace`, `inplace_writeback`, `materialized_views`.
- Operators without a rule: `decomposition`, `fallback`.
- Arguments: `mixed_tensors`, `torch_dtensor`, `list_indexing`, `storage_offset`.
- Errors on all ranks alike: `kernel_errors`. Gradients that autograd makes: `autograd_zeros`.
- Communication shared by arguments: `coalescing`. What a program switches on: `contexts`.
"""
