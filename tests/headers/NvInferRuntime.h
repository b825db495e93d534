// A stand-in for the part of TensorRT that run.cpp uses: an engine of output = 2 * x, (1..4, 3) in
// its first profile and (6..8, 3) in its second; x is float32, "same" is x in float16.
// Signatures are those of TensorRT 10 to 11 and TensorRT-RTX.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>

#include "cuda_runtime_api.h"

namespace nvinfer1 {

using AsciiChar = char;

struct Dims64 {
    static constexpr int32_t MAX_DIMS{8};
    int32_t nbDims;
    int64_t d[MAX_DIMS];
};
using Dims = Dims64;

class ILogger {
public:
    enum class Severity : int32_t { kINTERNAL_ERROR = 0, kERROR = 1, kWARNING = 2, kINFO = 3, kVERBOSE = 4 };
    virtual void log(Severity severity, AsciiChar const* msg) noexcept = 0;
    virtual ~ILogger() = default;
};

class IExecutionContext {
public:
    bool setOptimizationProfileAsync(int32_t profileIndex, cudaStream_t) noexcept {
        mProfile = profileIndex;
        return profileIndex < 2;
    }
    bool setInputShape(char const* tensorName, Dims const& dims) noexcept {
        int64_t const low = mProfile ? 6 : 1, high = mProfile ? 8 : 4;
        if (std::string(tensorName) != "x" || dims.nbDims != 2 || dims.d[1] != 3) return false;
        if (dims.d[0] < low || dims.d[0] > high) return false;
        mDims = dims;
        return true;
    }
    Dims getTensorShape(char const* tensorName) const noexcept {
        return known(tensorName) ? mDims : Dims{-1, {}};
    }
    bool setTensorAddress(char const* tensorName, void* data) noexcept {
        mAddresses[tensorName] = data;
        return known(tensorName) && data;
    }
    bool enqueueV3(cudaStream_t stream) noexcept {
        if (mAddresses.size() != 3 || !stream) return false;
        for (int64_t i = 0; i < mDims.d[0] * mDims.d[1]; ++i) {
            float const x = static_cast<float*>(mAddresses["x"])[i];
            static_cast<float*>(mAddresses["double"])[i] = 2 * x;
            static_cast<_Float16*>(mAddresses["same"])[i] = static_cast<_Float16>(x);
        }
        return true;
    }

private:
    static bool known(std::string const& name) { return name == "x" || name == "double" || name == "same"; }
    int32_t mProfile = -1;
    Dims mDims{-1, {}};
    std::map<std::string, void*> mAddresses;
};

class ICudaEngine {
public:
    IExecutionContext* createExecutionContext() noexcept { return new IExecutionContext; }
    int32_t getNbOptimizationProfiles() const noexcept { return 2; }
};

class IRuntime {
public:
    ICudaEngine* deserializeCudaEngine(void const* blob, std::size_t size) noexcept {
        char const* magic = static_cast<char const*>(blob);
        return size > 64 && !std::memcmp(magic + 1, "trt", 3) ? new ICudaEngine : nullptr;
    }
};

inline IRuntime* createInferRuntime(ILogger& logger) noexcept {
    logger.log(ILogger::Severity::kWARNING, "a stand-in");
    return new IRuntime;
}

} // namespace nvinfer1
