// A module of OpenCL kernels: a few programs that the driver compiles per device, called by TVM's host code.
//
// Ownership: the module owns programs and kernels; a function taken from it keeps the module alive.
// Threading: kernels may be called from many threads. A kernel is locked while its arguments are set (a cl_kernel holds
// them), not while it runs.
#ifndef HETEROCC_OPENCL_MODULE_H_
#define HETEROCC_OPENCL_MODULE_H_

#include <tvm/ffi/cast.h>
#include <tvm/ffi/extra/module.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "binary_package.h"
#include "module_format.h"
#include "program.h"
#include "queue.h"

namespace heterocc::opencl_plugin {

// One kernel of a module: how it is launched.
class Kernel {
 public:
  Kernel(std::string name, KernelSpec spec, Program* program)
      : name_(std::move(name)), spec_(std::move(spec)), program_(program) {}
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  const KernelSpec& spec() const { return spec_; }

  // Launches it on this thread's device: buffers and scalars as in `spec`, then one extent per launch tag.
  void Launch(const TVMFFIAny* arguments, int32_t count, const Binaries& bundled);

 private:
  // The queue of the buffers among the arguments, or that of this thread's device without buffers. Throws if they
  // cannot be used, such as those of a lost device.
  std::shared_ptr<Queue> QueueOf(const TVMFFIAny* arguments) const;

  const std::string name_;
  const KernelSpec spec_;
  Program* const program_;
  std::mutex mutex_;
};

class OpenCLModule final : public tvm::ffi::ModuleObj {
 public:
  // Reads the bytes of a module; throws `module` errors.
  explicit OpenCLModule(tvm::ffi::Bytes bytes);

  const char* kind() const final { return "opencl"; }
  int GetPropertyMask() const final { return tvm::ffi::Module::kBinarySerializable | tvm::ffi::Module::kRunnable; }
  tvm::ffi::Bytes SaveToBytes() const final { return bytes_; }
  tvm::ffi::String InspectSource(const tvm::ffi::String& format) const final;

  // A kernel by name, or one of
  //   heterocc_offer(binaries: bytes)       binaries to use if they fit; before the first build
  //   heterocc_build(device) -> int         builds all kernels, returns their number
  //   heterocc_origins(device) -> [int] * 4 programs from the bundle, from disk, from source; binaries refused
  //   heterocc_binaries(device) -> bytes    the binaries of the built programs
  tvm::ffi::Optional<tvm::ffi::Function> GetFunction(const tvm::ffi::String& name) final;

 private:
  void BuildAll(int device);
  Origins CountOrigins(int device);
  std::string CollectBinaries(int device);

  tvm::ffi::Bytes bytes_;
  Binaries bundled_;
  std::vector<std::unique_ptr<Program>> programs_;
  std::map<std::string, std::unique_ptr<Kernel>> kernels_;
};

}  // namespace heterocc::opencl_plugin

#endif  // HETEROCC_OPENCL_MODULE_H_
