// A module of SPIR-V kernels, which the driver compiles to pipelines for each device and TVM's host code calls.
//
// Ownership: the module owns its kernels and these their pipelines; a function taken from it keeps the module alive.
// Threading: kernels may be called from many threads. A kernel is locked while its pipeline is made, not while it runs.
#ifndef HETEROCC_VULKAN_MODULE_H_
#define HETEROCC_VULKAN_MODULE_H_

#include <tvm/ffi/cast.h>
#include <tvm/ffi/extra/module.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "module_format.h"
#include "queue.h"

namespace heterocc::vulkan_plugin {

// One kernel of a module.
class Kernel {
 public:
  Kernel(std::string name, KernelSpec spec) : name_(std::move(name)), spec_(std::move(spec)) {}
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  const KernelSpec& spec() const { return spec_; }

  // Compiles the kernel for a device, unless it is compiled already. Throws a `build` error with the features that the
  // device lacks, or the driver's reason.
  void Build(int device);

  // Launches it on this thread's device: buffers and scalars as in `spec`, then one extent per launch tag.
  void Launch(const TVMFFIAny* arguments, int32_t count);

 private:
  // A pipeline and the queue that it belongs to.
  struct Built {
    explicit Built(std::shared_ptr<Queue> queue) : queue(std::move(queue)) {}
    ~Built() { queue->Retire(&pipeline); }
    Built(const Built&) = delete;
    Built& operator=(const Built&) = delete;

    const std::shared_ptr<Queue> queue;
    Pipeline pipeline;
  };

  std::shared_ptr<Built> Get(int device);
  void CheckDevice(const DeviceInfo& info) const;
  void MakePipeline(Queue& queue, Pipeline* pipeline) const;
  Buffer* BufferOf(const TVMFFIAny& argument, size_t place, const Queue& queue) const;

  const std::string name_;
  const KernelSpec spec_;
  std::mutex mutex_;
  std::map<int, std::shared_ptr<Built>> built_;  // by device
};

class VulkanModule final : public tvm::ffi::ModuleObj {
 public:
  // Reads the bytes of a module; throws `module` errors.
  explicit VulkanModule(tvm::ffi::Bytes bytes);

  const char* kind() const final { return "vulkan"; }
  int GetPropertyMask() const final { return tvm::ffi::Module::kBinarySerializable | tvm::ffi::Module::kRunnable; }
  tvm::ffi::Bytes SaveToBytes() const final { return bytes_; }

  // A line per kernel: its arguments and the required features.
  tvm::ffi::String InspectSource(const tvm::ffi::String& format) const final;

  // A kernel by name, or `heterocc_build(device: int) -> int`, which builds all kernels and returns their number.
  tvm::ffi::Optional<tvm::ffi::Function> GetFunction(const tvm::ffi::String& name) final;

 private:
  int64_t BuildAll(int device);

  tvm::ffi::Bytes bytes_;
  std::map<std::string, std::unique_ptr<Kernel>> kernels_;
};

}  // namespace heterocc::vulkan_plugin

#endif  // HETEROCC_VULKAN_MODULE_H_
