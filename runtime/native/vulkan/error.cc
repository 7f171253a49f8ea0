#include "error.h"

namespace heterocc::vulkan_plugin {
namespace {

constexpr Meaning<VkResult> kMeanings[] = {
    {VK_NOT_READY, "VK_NOT_READY", "a query has no result yet"},
    {VK_TIMEOUT, "VK_TIMEOUT", "a wait took too long"},
    {VK_INCOMPLETE, "VK_INCOMPLETE", "there was more than room for"},
    {VK_ERROR_OUT_OF_HOST_MEMORY, "VK_ERROR_OUT_OF_HOST_MEMORY", "the host has no memory left"},
    {VK_ERROR_OUT_OF_DEVICE_MEMORY, "VK_ERROR_OUT_OF_DEVICE_MEMORY", "the device has no memory left"},
    {VK_ERROR_INITIALIZATION_FAILED, "VK_ERROR_INITIALIZATION_FAILED", "the driver could not set itself up"},
    {VK_ERROR_DEVICE_LOST, "VK_ERROR_DEVICE_LOST", "the device stopped: a kernel hung or failed, or it was taken away"},
    {VK_ERROR_MEMORY_MAP_FAILED, "VK_ERROR_MEMORY_MAP_FAILED", "the memory could not be mapped"},
    {VK_ERROR_LAYER_NOT_PRESENT, "VK_ERROR_LAYER_NOT_PRESENT", "a layer that was asked for is not installed"},
    {VK_ERROR_EXTENSION_NOT_PRESENT, "VK_ERROR_EXTENSION_NOT_PRESENT", "the driver lacks an extension"},
    {VK_ERROR_FEATURE_NOT_PRESENT, "VK_ERROR_FEATURE_NOT_PRESENT", "the device lacks a feature"},
    {VK_ERROR_INCOMPATIBLE_DRIVER, "VK_ERROR_INCOMPATIBLE_DRIVER", "no driver of this version is installed"},
    {VK_ERROR_TOO_MANY_OBJECTS, "VK_ERROR_TOO_MANY_OBJECTS", "the device holds as many allocations as it can"},
    {VK_ERROR_FRAGMENTED_POOL, "VK_ERROR_FRAGMENTED_POOL", "a descriptor pool is fragmented"},
    {VK_ERROR_OUT_OF_POOL_MEMORY, "VK_ERROR_OUT_OF_POOL_MEMORY", "a descriptor pool is full"},
    {VK_ERROR_INVALID_EXTERNAL_HANDLE, "VK_ERROR_INVALID_EXTERNAL_HANDLE", "the driver cannot use this host memory"},
    {VK_ERROR_INVALID_SHADER_NV, "VK_ERROR_INVALID_SHADER_NV", "the driver's compiler refused the kernel"},
    {VK_ERROR_UNKNOWN, "VK_ERROR_UNKNOWN", "the driver gives no reason"},
};

ErrorClass ClassOf(VkResult result) {
  switch (result) {
    case VK_ERROR_OUT_OF_HOST_MEMORY:
    case VK_ERROR_OUT_OF_DEVICE_MEMORY:
    case VK_ERROR_TOO_MANY_OBJECTS:
      return ErrorClass::kMemory;
    case VK_ERROR_INVALID_SHADER_NV:
      return ErrorClass::kBuild;
    default:
      return ErrorClass::kDevice;
  }
}

}  // namespace

std::string Describe(VkResult result) {
  return Describe(kMeanings, result, "VkResult");
}

void Check(VkResult result, const char* call, const std::string& context) {
  if (result != VK_SUCCESS) ThrowFailed(ClassOf(result), call, Describe(result), context);
}

}  // namespace heterocc::vulkan_plugin
