// Errors of the plug-in: every one starts with `heterocc.vulkan[CLASS]: ` so that Python can tell the classes apart.
//
// Threading: stateless.
#ifndef HETEROCC_VULKAN_ERROR_H_
#define HETEROCC_VULKAN_ERROR_H_

#include <string>

#include "driver.h"

namespace heterocc::vulkan_plugin {

enum class ErrorClass {
  kMemory,  // out of memory, or over the limit of one buffer
  kDevice,  // a call that failed for another reason, a lost device included
  kBuild,   // the driver refused a kernel, or the device lacks what it needs
  kDriver,  // no driver, or no device
  kModule,  // bytes that are no Vulkan module
};

// Throws a tvm::ffi::Error with the class's prefix.
[[noreturn]] void Throw(ErrorClass error_class, const std::string& message);

// `VK_ERROR_DEVICE_LOST (-4): the device stopped …`.
std::string Describe(VkResult result);

// Throws when `result` is an error; `call` is the API call, `context` what it was for (may be empty).
void Check(VkResult result, const char* call, const std::string& context = "");

// `123 bytes`.
std::string Bytes(uint64_t count);

}  // namespace heterocc::vulkan_plugin

#endif  // HETEROCC_VULKAN_ERROR_H_
