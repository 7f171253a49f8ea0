// The Vulkan driver, opened at run time: on a machine without one, the plug-in loads and reports the reason.
//
// Ownership: the library is opened once and never closed, its instance never destroyed; the tables of functions live
// as long as the instance and the device. Threading: every function here may be called from any thread; the first call
// does the work.
#ifndef HETEROCC_VULKAN_DRIVER_H_
#define HETEROCC_VULKAN_DRIVER_H_

#define VK_NO_PROTOTYPES
#include <vulkan/vulkan_core.h>

#include <string>

namespace heterocc::vulkan_plugin {

// The version that devices must support. Timeline semaphores and SPIR-V 1.5 are part of it.
constexpr uint32_t kApiVersion = VK_API_VERSION_1_2;

#define HETEROCC_VK_INSTANCE_FUNCTIONS(X)     \
  X(vkEnumeratePhysicalDevices)               \
  X(vkEnumerateDeviceExtensionProperties)     \
  X(vkGetPhysicalDeviceProperties2)           \
  X(vkGetPhysicalDeviceFeatures2)             \
  X(vkGetPhysicalDeviceMemoryProperties)      \
  X(vkGetPhysicalDeviceQueueFamilyProperties) \
  X(vkCreateDevice)                           \
  X(vkGetDeviceProcAddr)

#define HETEROCC_VK_DEVICE_FUNCTIONS(X) \
  X(vkDestroyDevice)                    \
  X(vkGetDeviceQueue)                   \
  X(vkQueueSubmit)                      \
  X(vkAllocateMemory)                   \
  X(vkFreeMemory)                       \
  X(vkMapMemory)                        \
  X(vkCreateBuffer)                     \
  X(vkDestroyBuffer)                    \
  X(vkGetBufferMemoryRequirements)      \
  X(vkBindBufferMemory)                 \
  X(vkCreateSemaphore)                  \
  X(vkDestroySemaphore)                 \
  X(vkWaitSemaphores)                   \
  X(vkGetSemaphoreCounterValue)         \
  X(vkCreateCommandPool)                \
  X(vkDestroyCommandPool)               \
  X(vkResetCommandPool)                 \
  X(vkAllocateCommandBuffers)           \
  X(vkBeginCommandBuffer)               \
  X(vkEndCommandBuffer)                 \
  X(vkCmdPipelineBarrier)               \
  X(vkCmdBindPipeline)                  \
  X(vkCmdBindDescriptorSets)            \
  X(vkCmdPushConstants)                 \
  X(vkCmdDispatch)                      \
  X(vkCmdCopyBuffer)                    \
  X(vkCmdResetQueryPool)                \
  X(vkCmdWriteTimestamp)                \
  X(vkCreateQueryPool)                  \
  X(vkDestroyQueryPool)                 \
  X(vkGetQueryPoolResults)              \
  X(vkCreateDescriptorPool)             \
  X(vkDestroyDescriptorPool)            \
  X(vkResetDescriptorPool)              \
  X(vkAllocateDescriptorSets)           \
  X(vkUpdateDescriptorSets)             \
  X(vkCreateDescriptorSetLayout)        \
  X(vkDestroyDescriptorSetLayout)       \
  X(vkCreatePipelineLayout)             \
  X(vkDestroyPipelineLayout)            \
  X(vkCreateShaderModule)               \
  X(vkDestroyShaderModule)              \
  X(vkCreatePipelineCache)              \
  X(vkDestroyPipelineCache)             \
  X(vkGetPipelineCacheData)             \
  X(vkCreateComputePipelines)           \
  X(vkDestroyPipeline)

// Functions of extensions: null if the device lacks the extension.
#define HETEROCC_VK_EXTENSION_FUNCTIONS(X) \
  X(vkCmdPushDescriptorSetKHR)             \
  X(vkGetMemoryHostPointerPropertiesEXT)

#define HETEROCC_VK_MEMBER(name) PFN_##name name = nullptr;

// The instance and the functions that belong to it.
struct Driver {
  VkInstance instance = VK_NULL_HANDLE;
  HETEROCC_VK_INSTANCE_FUNCTIONS(HETEROCC_VK_MEMBER)
};

// The functions of one logical device, called without the loader's dispatch.
struct DeviceFunctions {
  HETEROCC_VK_DEVICE_FUNCTIONS(HETEROCC_VK_MEMBER)
  HETEROCC_VK_EXTENSION_FUNCTIONS(HETEROCC_VK_MEMBER)
};

#undef HETEROCC_VK_MEMBER

// The driver, or null if it cannot be opened (`WhyNoDriver` gives the reason).
const Driver* FindDriver();

// The reason why `FindDriver` returns null; empty if it does not.
const std::string& WhyNoDriver();

// The driver; throws a `driver` error if there is none.
const Driver& RequireDriver();

// Fills the table for a logical device; throws a `driver` error if a function of Vulkan 1.2 is missing.
void Resolve(VkDevice device, DeviceFunctions* functions);

}  // namespace heterocc::vulkan_plugin

#endif  // HETEROCC_VULKAN_DRIVER_H_
