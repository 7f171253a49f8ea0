// TVM's device interface for OpenCL: memory, copies, waiting.
//
// A data pointer of a TVM tensor on kDLOpenCL is a `Buffer*` of ours, never an address of the device's memory.
//
// Ownership: `AllocDataSpace` gives a Buffer that `FreeDataSpace` frees; the driver keeps
// memory that commands still use until they are done. Buffers of workspaces go to a free-list per device and are
// reused. Threading: every member may be called from any thread; `SetDevice` is per thread.
#ifndef HETEROCC_OPENCL_DEVICE_API_H_
#define HETEROCC_OPENCL_DEVICE_API_H_

#include <memory>
#include <string>

#include "../common/device_base.h"
#include "lent.h"
#include "queue.h"

namespace heterocc::opencl_plugin {

// The target of an OpenCL tensor's data pointer.
struct Buffer {
  std::shared_ptr<Queue> queue;
  cl_mem mem = nullptr;
  void* host = nullptr;        // the host address of the same memory, if the device shares it
  size_t size = 0;             // bytes
  bool borrowed = false;       // `host` belongs to the caller
  std::unique_ptr<Lent> lent;  // set if the memory is that of `Lend`
};

class OpenCLDeviceAPI final : public DeviceBase {
 public:
  static OpenCLDeviceAPI* Global();

  void GetTargetProperty(tvm::Device device, const std::string& property, tvm::ffi::Any* result) final;

  using DeviceAPI::AllocDataSpace;
  void* AllocDataSpace(tvm::Device device, size_t nbytes, size_t alignment, DLDataType type_hint) final;
  void FreeDataSpace(tvm::Device device, void* data) final;

  // A buffer over host memory that the caller keeps alive until the buffer is freed. Only for devices that share the
  // host's memory; `host` must have the device's alignment (DeviceInfo::alignment).
  void* Borrow(int device, void* host, size_t nbytes);

  // Frees the idle workspaces of all devices; returns their bytes.
  size_t Trim();

 protected:
  void GetOwnAttr(const DeviceInfo& info, tvm::runtime::DeviceAttrKind kind, tvm::ffi::Any* result) final;
  using DeviceAPI::CopyDataFromTo;
  void CopyDataFromTo(const void* from, size_t from_offset, void* to, size_t to_offset, size_t nbytes,
                      tvm::Device from_device, tvm::Device to_device, DLDataType type_hint,
                      TVMStreamHandle stream) final;

 private:
  OpenCLDeviceAPI() = default;
};

// The names that the sources in `common` use for the plug-in's classes.
using PluginDeviceAPI = OpenCLDeviceAPI;
constexpr DLDeviceType kPluginDevice = kDLOpenCL;

// The host address of a buffer's memory; null if the host cannot access it.
inline void* HostAddress(const Buffer& buffer) {
  return buffer.host;
}

}  // namespace heterocc::opencl_plugin

#endif  // HETEROCC_OPENCL_DEVICE_API_H_
