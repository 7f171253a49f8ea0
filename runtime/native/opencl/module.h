// A module of OpenCL kernels: compiled by the driver per device on first use, called by TVM's host code.
//
// Ownership: the module owns its kernels; a function taken from it keeps the module alive.
// Threading: kernels may be called from many threads. A kernel is locked while it is built and while its arguments are
// set (a cl_kernel holds them), not while it runs.
#ifndef HETEROCC_OPENCL_MODULE_H_
#define HETEROCC_OPENCL_MODULE_H_

#include <tvm/ffi/cast.h>
#include <tvm/ffi/extra/module.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "module_format.h"
#include "queue.h"

namespace heterocc::opencl_plugin {

// One kernel of a module.
class Kernel {
 public:
  Kernel(std::string name, KernelSpec spec) : name_(std::move(name)), spec_(std::move(spec)) {}
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  const KernelSpec& spec() const { return spec_; }

  // Has the driver compile the kernel for a device, unless that is done.
  void Build(int device);

  // Launches it on this thread's device: buffers and scalars as in `spec`, then one extent per launch axis.
  void Launch(const TVMFFIAny* arguments, int32_t count);

 private:
  cl_kernel BuildLocked(int device, Queue& queue);

  const std::string name_;
  const KernelSpec spec_;
  std::mutex mutex_;
  std::map<int, cl_kernel> built_;  // by device
};

class OpenCLModule final : public tvm::ffi::ModuleObj {
 public:
  // Reads the bytes of a module; throws `module` errors.
  explicit OpenCLModule(tvm::ffi::Bytes bytes);

  const char* kind() const final { return "opencl"; }
  int GetPropertyMask() const final { return tvm::ffi::Module::kBinarySerializable | tvm::ffi::Module::kRunnable; }
  tvm::ffi::Bytes SaveToBytes() const final { return bytes_; }
  tvm::ffi::String InspectSource(const tvm::ffi::String& format) const final;

  // A kernel by name, or `heterocc_build(device: int) -> int`, which builds all kernels and returns how many.
  tvm::ffi::Optional<tvm::ffi::Function> GetFunction(const tvm::ffi::String& name) final;

 private:
  tvm::ffi::Bytes bytes_;
  std::map<std::string, std::unique_ptr<Kernel>> kernels_;
};

}  // namespace heterocc::opencl_plugin

#endif  // HETEROCC_OPENCL_MODULE_H_
