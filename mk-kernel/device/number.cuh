// Elements of a region as numbers to compute with: real types as f32, i32 as it is.
#pragma once
#include "mk/ptx.cuh"

namespace mk {

// How the elements of a type lie in a 32-bit word, and what they are computed with.
template <u32 DTYPE>
struct Element {
    using Number = float;
    static constexpr u32 BYTES = DTYPE == DTYPE_BF16 || DTYPE == DTYPE_F16 ? 2 : 4;

    static DEV void unpack(u32 word, float* x) {
        if constexpr (DTYPE == DTYPE_BF16) {
            x[0] = __uint_as_float(word << 16);
            x[1] = __uint_as_float(word & 0xffff0000u);
        } else if constexpr (DTYPE == DTYPE_F16) {
            x[0] = ptx::f16_to_f32(word & 0xffff);
            x[1] = ptx::f16_to_f32(word >> 16);
        } else {
            x[0] = __uint_as_float(word);
        }
    }

    // Rounded to nearest even; a NaN is stored as the conversion gives it, 0x7fff, or 0x7fffffff.
    static DEV u32 pack(const float* x) {
        if constexpr (DTYPE == DTYPE_BF16) {
            return ptx::pack_bf16(x[0], x[1]);
        } else if constexpr (DTYPE == DTYPE_F16) {
            return ptx::pack_f16(x[0], x[1]);
        } else {
            return x[0] == x[0] ? __float_as_uint(x[0]) : 0x7fffffff;
        }
    }
};

template <>
struct Element<DTYPE_I32> {
    using Number = i32;
    static constexpr u32 BYTES = 4;

    static DEV void unpack(u32 word, i32* x) { x[0] = (i32)word; }
    static DEV u32 pack(const i32* x) { return (u32)x[0]; }
};

// `COUNT` numbers from shared memory, and to it if `yes`, 16 bytes at a time.
template <u32 DTYPE, u32 COUNT>
DEV void load_numbers(u32 at, typename Element<DTYPE>::Number (&x)[COUNT]) {
    using E = Element<DTYPE>;
    constexpr u32 IN_WORD = 4 / E::BYTES;
#pragma unroll
    for (u32 i = 0; i < COUNT; i += 4 * IN_WORD) {
        const uint4 v = ptx::load_shared_128(at + i * E::BYTES);
        E::unpack(v.x, x + i);
        E::unpack(v.y, x + i + IN_WORD);
        E::unpack(v.z, x + i + 2 * IN_WORD);
        E::unpack(v.w, x + i + 3 * IN_WORD);
    }
}

template <u32 DTYPE, u32 COUNT>
DEV void store_numbers(bool yes, u32 at, const typename Element<DTYPE>::Number (&x)[COUNT]) {
    using E = Element<DTYPE>;
    constexpr u32 IN_WORD = 4 / E::BYTES;
#pragma unroll
    for (u32 i = 0; i < COUNT; i += 4 * IN_WORD) {
        const uint4 v{E::pack(x + i), E::pack(x + i + IN_WORD), E::pack(x + i + 2 * IN_WORD),
                      E::pack(x + i + 3 * IN_WORD)};
        ptx::store_shared_128_if(yes, at + i * E::BYTES, v);
    }
}

}  // namespace mk
