// A logical device with every feature that kernels may need.
//
// Ownership: owns the VkDevice and destroys it; objects of the device must be destroyed before.
// Threading: immutable; calls that Vulkan requires to be synchronised must be ordered by the caller.
#ifndef HETEROCC_VULKAN_LOGICAL_DEVICE_H_
#define HETEROCC_VULKAN_LOGICAL_DEVICE_H_

#include "platform.h"

namespace heterocc::vulkan_plugin {

class LogicalDevice {
 public:
  // Opens the device; throws `device` or `memory` errors.
  explicit LogicalDevice(const DeviceInfo& info);
  ~LogicalDevice();
  LogicalDevice(const LogicalDevice&) = delete;
  LogicalDevice& operator=(const LogicalDevice&) = delete;

  const DeviceInfo& info() const { return info_; }
  const DeviceFunctions& vk() const { return functions_; }
  VkDevice handle() const { return handle_; }
  VkQueue queue() const { return queue_; }

 private:
  const DeviceInfo& info_;
  VkDevice handle_ = VK_NULL_HANDLE;
  VkQueue queue_ = VK_NULL_HANDLE;
  DeviceFunctions functions_;
};

}  // namespace heterocc::vulkan_plugin

#endif  // HETEROCC_VULKAN_LOGICAL_DEVICE_H_
