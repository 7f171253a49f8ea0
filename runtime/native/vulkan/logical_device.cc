#include "logical_device.h"

#include "error.h"

namespace heterocc::vulkan_plugin {

LogicalDevice::LogicalDevice(const DeviceInfo& info) : info_(info) {
  const auto has = [&](Feature feature) -> VkBool32 { return (info.features & feature) != 0; };
  VkPhysicalDeviceVulkan12Features twelve{};
  twelve.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES;
  twelve.shaderFloat16 = has(kFloat16);
  twelve.shaderInt8 = has(kInt8);
  twelve.storageBuffer8BitAccess = has(kStorage8);
  twelve.timelineSemaphore = VK_TRUE;
  VkPhysicalDeviceVulkan11Features eleven{};
  eleven.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES;
  eleven.pNext = &twelve;
  eleven.storageBuffer16BitAccess = has(kStorage16);
  VkPhysicalDeviceFeatures2 features{};
  features.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
  features.pNext = &eleven;
  features.features.shaderInt64 = has(kInt64);
  features.features.shaderFloat64 = has(kFloat64);
  features.features.shaderInt16 = has(kInt16);

  std::vector<const char*> extensions;
  if (info.push_descriptors != 0) extensions.push_back(VK_KHR_PUSH_DESCRIPTOR_EXTENSION_NAME);
  if (info.import_alignment != 0) extensions.push_back(VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME);
  const float priority = 1;
  VkDeviceQueueCreateInfo queue{};
  queue.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO;
  queue.queueFamilyIndex = info.queue_family;
  queue.queueCount = 1;
  queue.pQueuePriorities = &priority;
  VkDeviceCreateInfo create{};
  create.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO;
  create.pNext = &features;
  create.queueCreateInfoCount = 1;
  create.pQueueCreateInfos = &queue;
  create.enabledExtensionCount = static_cast<uint32_t>(extensions.size());
  create.ppEnabledExtensionNames = extensions.data();
  const Driver& driver = RequireDriver();
  Check(driver.vkCreateDevice(info.id, &create, nullptr, &handle_), "vkCreateDevice", "device '" + info.name + "'");
  Resolve(handle_, &functions_);
  functions_.vkGetDeviceQueue(handle_, info.queue_family, 0, &queue_);
}

LogicalDevice::~LogicalDevice() {
  functions_.vkDestroyDevice(handle_, nullptr);
}

}  // namespace heterocc::vulkan_plugin
