// TVM's device interface for Vulkan: memory, copies, waiting.
//
// A data pointer of a TVM tensor on kDLVulkan is a `Buffer*` of ours, never an address of the device's memory.
//
// Ownership: `AllocDataSpace` gives a Buffer that `FreeDataSpace` frees; memory that commands still use is
// reused only by later commands. Buffers of workspaces go to a free-list per device and are reused.
// Threading: every member may be called from any thread; `SetDevice` is per thread.
#ifndef HETEROCC_VULKAN_DEVICE_API_H_
#define HETEROCC_VULKAN_DEVICE_API_H_

#include <string>

#include "../common/device_base.h"
#include "queue.h"

namespace heterocc::vulkan_plugin {

class VulkanDeviceAPI final : public DeviceBase {
 public:
  static VulkanDeviceAPI* Global();

  void GetTargetProperty(tvm::Device device, const std::string& property, tvm::ffi::Any* result) final;

  using DeviceAPI::AllocDataSpace;
  void* AllocDataSpace(tvm::Device device, size_t nbytes, size_t alignment, DLDataType type_hint) final;
  void FreeDataSpace(tvm::Device device, void* data) final;

  // A buffer over host memory that the caller keeps alive until the buffer is freed. Only for devices that share the
  // host's memory; `host` must be 64-byte aligned.
  void* Borrow(int device, void* host, size_t nbytes);

  // Frees idle workspaces and blocks of all devices in use; returns their bytes.
  size_t Trim();

 protected:
  void GetOwnAttr(const DeviceInfo& info, tvm::runtime::DeviceAttrKind kind, tvm::ffi::Any* result) final;
  using DeviceAPI::CopyDataFromTo;
  void CopyDataFromTo(const void* from, size_t from_offset, void* to, size_t to_offset, size_t nbytes,
                      tvm::Device from_device, tvm::Device to_device, DLDataType type_hint,
                      TVMStreamHandle stream) final;

 private:
  VulkanDeviceAPI() = default;
};

// The names that the sources in `common` use for the plug-in's classes.
using PluginDeviceAPI = VulkanDeviceAPI;
constexpr DLDeviceType kPluginDevice = kDLVulkan;

// The host address of a buffer's memory; null if the host cannot access it.
inline void* HostAddress(const Buffer& buffer) {
  return buffer.memory.host;
}

}  // namespace heterocc::vulkan_plugin

#endif  // HETEROCC_VULKAN_DEVICE_API_H_
