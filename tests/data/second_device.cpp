// A device, "second", whose memory is the CPU's and whose operators run on the CPU. As on a GPU,
// tensors of both do not mix: so models that lie elsewhere than on the CPU can be tested anywhere.

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/extension.h>

namespace {

constexpr auto DEVICE = c10::DeviceType::PrivateUse1;
const c10::DispatchKeySet KEYS(c10::DispatchKey::PrivateUse1);

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = c10::alloc_cpu(bytes);
    return {data, data, &c10::free_cpu, c10::Device(DEVICE, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &c10::free_cpu; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

Memory memory;

struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::DataPtr data = memory.allocate(bytes);
    memory.copy_data(data.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.set_data_ptr_noswap(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

Hooks hooks;

at::Tensor on_cpu(const at::Tensor& x) {
  if (x.device().is_cpu()) return x;
  auto* data = static_cast<char*>(const_cast<void*>(x.storage().data()));
  auto options = at::TensorOptions().dtype(x.dtype()).device(at::kCPU);
  data += x.storage_offset() * x.element_size();
  auto result = at::from_blob(data, x.sizes(), x.strides(), options);
  if (x.is_conj()) result._set_conj(true);
  if (x.is_neg()) result._set_neg(true);
  return result;
}

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &memory, KEYS, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &memory, KEYS,
                                           c10::dtype_or_default(dtype));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  on_cpu(to).copy_(on_cpu(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

const at::Tensor& resize(const at::Tensor& x, c10::SymIntArrayRef size,
                         std::optional<at::MemoryFormat>) {
  auto shape = C10_AS_INTARRAYREF_SLOW(size);
  auto bytes = (x.storage_offset() + c10::multiply_integers(shape)) * x.element_size();
  if (static_cast<int64_t>(x.storage().nbytes()) < bytes)
    hooks.resizePrivateUse1Bytes(x.storage(), bytes);
  x.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return x;
}

at::Scalar scalar(const at::Tensor& x) { return on_cpu(x).item(); }

std::tuple<at::Tensor, at::Tensor, at::Tensor> no_gradient(
    const at::Tensor&, const at::Tensor&, const at::Tensor&, c10::SymIntArrayRef,
    c10::SymIntArrayRef, c10::SymIntArrayRef, bool, c10::SymIntArrayRef, c10::SymInt,
    std::array<bool, 3>) {
  TORCH_CHECK(false, "no gradients on this device");
}

at::Tensor convolution(const at::Tensor& x, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                       c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
                       c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  std::optional<at::Tensor> own;
  if (bias.has_value() && bias->defined()) own = on_cpu(*bias);
  return at::convolution_symint(on_cpu(x), on_cpu(weight), own, stride, padding, dilation,
                                transposed, output_padding, groups)
      .to(x.device());
}

// As on a GPU: a number in a 0-d tensor may lie on the CPU, and what tensors are indexed with.
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  bool has_own = false, has_others = false;
  for (const auto& value : torch::jit::last(*stack, op.schema().arguments().size())) {
    auto note = [&](const at::Tensor& x) {
      if (!x.defined()) return;
      has_own |= !x.device().is_cpu();
      has_others |= x.device().is_cpu() && x.dim() > 0;
    };
    if (value.isTensor()) note(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& x : value.toTensorVector()) note(x);
  }
  const std::set<std::string> indexing = {"aten::index", "aten::index_put", "aten::index_put_",
                                          "aten::_index_put_impl_", "aten::_unsafe_index"};
  bool is_index = indexing.count(op.schema().name()) > 0;
  TORCH_CHECK(!has_own || !has_others || is_index, op.schema().name(),
              ": Expected all tensors to be on the same device");
  at::native::cpu_fallback(op, stack);
}

at::Tensor as_strided(const at::Tensor& x, c10::IntArrayRef size, c10::IntArrayRef stride,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(x, size, stride, offset);
}

C10_REGISTER_GUARD_IMPL(PrivateUse1, c10::impl::NoOpDeviceGuardImpl<DEVICE>)

struct Registered {
  Registered() {
    at::RegisterPrivateUse1HooksInterface(&hooks);
    c10::SetAllocator(DEVICE, &memory);
  }
} registered;

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("resize_", &resize);
  m.impl("_local_scalar_dense", &scalar);
  m.impl("view", &at::native::view);
  m.impl("as_strided", &as_strided);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("set_.source_Storage", &at::native::set_);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &no_gradient);
}

// Copies resolve these themselves; the fallbacks would copy, without an end.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
