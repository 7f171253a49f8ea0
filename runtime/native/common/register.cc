// Headers named without a folder are the plug-in's own: every plug-in compiles this file with its folder.
#include "register.h"

#include <dlfcn.h>
#include <link.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/container/tuple.h>
#include <tvm/ffi/function.h>

#include <cstdio>

#include "device_api.h"
#include "error.h"
#include "fault.h"
#include "transfer.h"

#define HETEROCC_FUNCTION(name) "heterocc." HETEROCC_NAME "." name

namespace heterocc::HETEROCC_PLUGIN {
namespace {

namespace ffi = tvm::ffi;

// Entries of DeviceAPI's virtual table in TVM 0.27: twenty functions, the offset to top and the type.
constexpr size_t kDeviceApiTableBytes = 22 * sizeof(void*);

// Whether the loaded TVM has the DeviceAPI that this file was compiled for. Another one would call wrong functions.
bool DeviceApiMatches() {
  void* table = dlsym(RTLD_DEFAULT, "_ZTVN3tvm7runtime9DeviceAPIE");
  if (table == nullptr) return true;  // a hidden symbol cannot be compared
  Dl_info info;
  void* extra = nullptr;
  if (dladdr1(table, &info, &extra, RTLD_DL_SYMENT) == 0 || extra == nullptr) return true;
  return static_cast<const ElfW(Sym)*>(extra)->st_size == kDeviceApiTableBytes;
}

void RequireOurs(DLDevice device) {
  if (device.device_type != kPluginDevice) {
    Throw(ErrorClass::kDevice, "this is not a tensor or device of " HETEROCC_LABEL);
  }
}

// A tensor over the allocation of another, which it keeps alive.
class SharedData {
 public:
  explicit SharedData(ffi::Tensor base) : base_(std::move(base)) {}
  void AllocData(DLTensor* tensor) { tensor->data = base_.data_ptr(); }
  void FreeData(DLTensor*) {}

 private:
  ffi::Tensor base_;
};

ffi::Tensor View(const ffi::Tensor& base, const ffi::Shape& shape, DLDataType dtype) {
  RequireOurs(base.device());
  if (base.data_ptr() == nullptr || base.byte_offset() != 0) {
    Throw(ErrorClass::kDevice, "a view needs a tensor that starts at the start of its allocation");
  }
  const uint64_t limit = static_cast<const Buffer*>(base.data_ptr())->size;
  const std::string refusal = "a view must fit into its allocation of " + Bytes(limit);
  uint64_t elements = 1;
  for (int64_t extent : shape) {
    if (extent < 0 || (extent > 0 && elements > limit / static_cast<uint64_t>(extent))) {
      Throw(ErrorClass::kDevice, refusal);
    }
    elements *= static_cast<uint64_t>(extent);
  }
  if (ffi::GetDataSize(elements, dtype) > limit) Throw(ErrorClass::kDevice, refusal);
  return ffi::Tensor::FromNDAlloc(SharedData(base), shape, dtype, base.device());
}

// A tensor over host memory that the caller owns.
class BorrowedData {
 public:
  void AllocData(DLTensor* tensor, void* host) {
    tensor->data = PluginDeviceAPI::Global()->Borrow(tensor->device.device_id, host, ffi::GetDataSize(*tensor));
  }
  void FreeData(DLTensor* tensor) { PluginDeviceAPI::Global()->FreeDataSpace(tensor->device, tensor->data); }
};

ffi::Tensor Alias(int64_t host, const ffi::Shape& shape, DLDataType dtype, DLDevice device) {
  RequireOurs(device);
  return ffi::Tensor::FromNDAlloc(BorrowedData(), shape, dtype, device, reinterpret_cast<void*>(host));
}

int64_t HostPointer(const ffi::Tensor& tensor) {
  RequireOurs(tensor.device());
  const auto* buffer = static_cast<const Buffer*>(tensor.data_ptr());
  if (buffer == nullptr || HostAddress(*buffer) == nullptr) return 0;
  return reinterpret_cast<int64_t>(HostAddress(*buffer)) + static_cast<int64_t>(tensor.byte_offset());
}

ffi::Array<ffi::Tuple<int64_t, int64_t>> TakeProfile(int64_t owner) {
  ffi::Array<ffi::Tuple<int64_t, int64_t>> result;
  for (const auto& [label, nanoseconds] : Queue::TakeProfile(owner)) {
    result.push_back(ffi::Tuple<int64_t, int64_t>(label, nanoseconds));
  }
  return result;
}

ffi::Array<int64_t> Statistics(int64_t device) {
  ffi::Array<int64_t> result;
  for (const uint64_t number : Queue::Of(static_cast<int>(device))->Statistics()) {
    result.push_back(static_cast<int64_t>(number));
  }
  return result;
}

void Register() {
  if (ffi::Function::GetGlobal(HETEROCC_FUNCTION("problem")).has_value()) return;  // a second copy of the plug-in
  ffi::reflection::GlobalDef global;
  std::string problem;
  if (!DeviceApiMatches()) problem = "the loaded TVM has another DeviceAPI than the one this plug-in was built for";
  const bool foreign = ffi::Function::GetGlobal("device_api." HETEROCC_NAME).has_value();
  global.def(HETEROCC_FUNCTION("problem"), [problem]() { return ffi::String(problem); })
      .def(HETEROCC_FUNCTION("foreign"), [foreign]() { return foreign; })
      .def(HETEROCC_FUNCTION("devices"), []() { return ffi::String(DevicesAsJson()); })
      .def(HETEROCC_FUNCTION("fault"),
           [](const ffi::String& spec) { return ffi::String(Faults::Global().Set(std::string(spec))); });
  if (foreign || !problem.empty()) return;
  global
      .def_packed("device_api." HETEROCC_NAME,
                  [](ffi::PackedArgs, ffi::Any* result) {
                    tvm::runtime::DeviceAPI* api = PluginDeviceAPI::Global();
                    *result = static_cast<void*>(api);
                  })
      .def(HETEROCC_FUNCTION("view"), View)
      .def(HETEROCC_FUNCTION("alias"), Alias)
      .def(HETEROCC_FUNCTION("host_ptr"), HostPointer)
      .def(HETEROCC_FUNCTION("start_copy"), StartCopy)
      .def(HETEROCC_FUNCTION("mark"), Mark)
      .def(HETEROCC_FUNCTION("pin"), Pin)
      .def(HETEROCC_FUNCTION("statistics"), Statistics)
      .def(HETEROCC_FUNCTION("trim"), []() { return static_cast<int64_t>(PluginDeviceAPI::Global()->Trim()); })
      .def(HETEROCC_FUNCTION("profiling"), [](bool enabled) { Queue::SetProfiling(enabled); })
      .def(HETEROCC_FUNCTION("time_for"),
           [](int64_t owner, int64_t label) { TimedFor::OfThread() = TimedFor{owner, label}; })
      .def(HETEROCC_FUNCTION("take_profile"), TakeProfile);
  RegisterOwn(&global);
}

// Runs when the library is opened; an exception there would end the process.
TVM_FFI_STATIC_INIT_BLOCK() {
  try {
    Register();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "warning: heterocc's " HETEROCC_LABEL " plug-in is not available: %s\n", error.what());
  }
}

}  // namespace
}  // namespace heterocc::HETEROCC_PLUGIN
