// A stand-in for CUDA's bfloat16 type.
#pragma once
#include <cstdint>
#include <cstring>

struct __nv_bfloat16 {
    uint16_t bits;
};
inline float __bfloat162float(__nv_bfloat16 x) {
    uint32_t const wide = static_cast<uint32_t>(x.bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof(value));
    return value;
}
