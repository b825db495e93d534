// A stand-in for the part of the CUDA runtime that run.cpp uses: device memory is the host's.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <cstring>

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
using cudaStream_t = struct CUstream_st*;

inline char const* cudaGetErrorString(cudaError_t) { return "a CUDA error"; }
inline cudaError_t cudaMalloc(void** memory, size_t size) {
    *memory = std::malloc(size);
    return *memory && size ? cudaSuccess : cudaErrorInvalidValue;
}
inline cudaError_t cudaMemcpy(void* to, void const* from, size_t size, cudaMemcpyKind) {
    if (size) std::memcpy(to, from, size);
    return cudaSuccess;
}
inline cudaError_t cudaStreamCreate(cudaStream_t* stream) {
    *stream = reinterpret_cast<cudaStream_t>(1);
    return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
