// Error codes of Vulkan as errors of the plug-in.
//
// Threading: stateless.
#ifndef HETEROCC_VULKAN_ERROR_H_
#define HETEROCC_VULKAN_ERROR_H_

#include <string>

#include "../common/error.h"
#include "driver.h"

namespace heterocc::vulkan_plugin {

// `VK_ERROR_DEVICE_LOST (-4): the device stopped …`.
std::string Describe(VkResult result);

// Throws when `result` is an error; `call` is the API call, `context` its purpose (may be empty).
void Check(VkResult result, const char* call, const std::string& context = "");

}  // namespace heterocc::vulkan_plugin

#endif  // HETEROCC_VULKAN_ERROR_H_
