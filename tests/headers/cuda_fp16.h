// A stand-in for CUDA's half type.
#pragma once

struct __half {
    _Float16 value;
};
inline float __half2float(__half x) { return static_cast<float>(x.value); }
