//! Handlers (gemm, cast, add, scale, swiglu) and the operators that use them.
