// Runs this folder's engine on the sample inputs and compares with the sample outputs:
//   run [folder [relative error that is allowed]]    exit code: 0 same, 1 different, 2 not run
#include <NvInferRuntime.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

using namespace nvinfer1;
using Bytes = std::vector<char>;
struct Logger : ILogger {
    void log(Severity level, char const* text) noexcept override {
        if (level <= Severity::kWARNING) std::cerr << text << "\n";
    }
};
struct Tensor { std::string kind, file, dtype, name; Dims dims{}; Bytes bytes; void* memory = nullptr; };
void check(bool good, std::string const& what) { if (!good) throw std::runtime_error(what); }
void check(cudaError_t status) { check(status == cudaSuccess, cudaGetErrorString(status)); }
Bytes read(std::string const& path) {
    std::ifstream file(path, std::ios::binary);
    check(file.good(), path + " cannot be read");
    return {std::istreambuf_iterator<char>(file), {}};
}
template <typename T> T as(void const* bytes) { T x; std::memcpy(&x, bytes, sizeof(T)); return x; }
double number(std::string const& dtype, char const* bytes, size_t i) {
    if (dtype == "float32") return as<float>(bytes + 4 * i);
    if (dtype == "float16") return __half2float(as<__half>(bytes + 2 * i));
    if (dtype == "bfloat16") return __bfloat162float(as<__nv_bfloat16>(bytes + 2 * i));
    if (dtype == "int64") return double(as<int64_t>(bytes + 8 * i));
    if (dtype == "int32") return as<int32_t>(bytes + 4 * i);
    check(dtype == "int8" || dtype == "uint8" || dtype == "bool", "no numbers of type " + dtype);
    return dtype == "int8" ? as<int8_t>(bytes + i) : as<uint8_t>(bytes + i);
}
double distance(Tensor const& wanted, Bytes const& got) {  // norm of the difference over the norm
    double difference = 0, norm = 0;
    size_t count = 1;
    for (int i = 0; i < wanted.dims.nbDims; ++i) count *= size_t(wanted.dims.d[i]);
    for (size_t i = 0; i < count; ++i) {
        double const a = number(wanted.dtype, wanted.bytes.data(), i), b = number(wanted.dtype, got.data(), i);
        if (std::isfinite(a)) norm += a * a;
        if (a != b && !(std::isnan(a) && std::isnan(b))) difference += (a - b) * (a - b);
    }
    return std::sqrt(difference) / (norm > 0 ? std::sqrt(norm) : 1);
}
int run(std::string const& folder, double rtol) {
    std::vector<Tensor> tensors;
    std::ifstream index(folder + "/samples/index.txt");
    for (Tensor x; index >> x.kind; tensors.push_back(x)) {  // kind file type rank sizes... name
        index >> x.file >> x.dtype >> x.dims.nbDims;
        for (int i = 0; i < x.dims.nbDims; ++i) index >> x.dims.d[i];
        std::getline(index >> std::ws, x.name);
        x.bytes = read(folder + "/" + x.file);
    }
    Logger logger; Bytes const plan = read(folder + "/model.engine");
    std::unique_ptr<IRuntime> runtime(createInferRuntime(logger));
    std::unique_ptr<ICudaEngine> engine(runtime ? runtime->deserializeCudaEngine(plan.data(), plan.size()) : nullptr);
    check(engine != nullptr, "the engine does not load here; README.md says what it was built for");
    std::unique_ptr<IExecutionContext> context(engine->createExecutionContext());
    cudaStream_t stream; check(cudaStreamCreate(&stream));
    bool fits = false;
    for (int profile = 0; profile < engine->getNbOptimizationProfiles() && !fits; ++profile) {
        fits = context->setOptimizationProfileAsync(profile, stream);
        for (Tensor& x : tensors)
            if (x.kind == "input") fits = context->setInputShape(x.name.c_str(), x.dims) && fits;
    }
    check(fits && !tensors.empty(), "the engine has no profile for the sizes of the samples");
    for (Tensor& x : tensors) {
        Dims const shape = context->getTensorShape(x.name.c_str());
        bool const equal = std::equal(shape.d, shape.d + shape.nbDims, x.dims.d, x.dims.d + x.dims.nbDims);
        check(equal, x.name + " has another shape in the engine");
        check(cudaMalloc(&x.memory, x.bytes.size() + 1));  // never nothing: TensorRT wants an address
        check(cudaMemcpy(x.memory, x.bytes.data(), x.kind == "input" ? x.bytes.size() : 0, cudaMemcpyDefault));
        check(context->setTensorAddress(x.name.c_str(), x.memory), x.name + " is not in the engine");
    }
    check(context->enqueueV3(stream), "the engine failed");
    check(cudaStreamSynchronize(stream));
    bool same = true;
    for (Tensor& x : tensors) {
        if (x.kind == "input") continue;
        Bytes got(x.bytes.size());
        check(cudaMemcpy(got.data(), x.memory, got.size(), cudaMemcpyDefault));
        double const error = distance(x, got), most = x.dtype.find("float") == std::string::npos ? 0 : rtol;
        std::cout << x.name << ": relative error " << error << (error <= most ? "" : ", DIFFERENT") << "\n";
        same &= error <= most;
    }
    return same ? 0 : 1;
}
int main(int count, char** arguments) try {
    return run(count > 1 ? arguments[1] : ".", count > 2 ? std::stod(arguments[2]) : RTOL);  // RTOL: CMakeLists.txt
} catch (std::exception const& error) { std::cerr << "Error: " << error.what() << "\n"; return 2; }
