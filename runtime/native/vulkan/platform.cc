#include "platform.h"

#include <algorithm>
#include <cctype>
#include <cstring>

#include "error.h"
#include "fault.h"

namespace heterocc::vulkan_plugin {
namespace {

constexpr struct {
  Feature feature;
  const char* name;
} kFeatureNames[] = {
    {kInt64, "int64"},       {kFloat64, "float64"},     {kFloat16, "float16"}, {kInt8, "int8"},
    {kStorage8, "storage8"}, {kStorage16, "storage16"}, {kInt16, "int16"},     {kSubgroups, "subgroups"},
    {kNan16, "nan16"},       {kNan32, "nan32"},         {kNan64, "nan64"},
};

std::string VersionText(uint32_t version) {
  return std::to_string(VK_API_VERSION_MAJOR(version)) + "." + std::to_string(VK_API_VERSION_MINOR(version)) + "." +
         std::to_string(VK_API_VERSION_PATCH(version));
}

bool NamesSoftware(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const char* word : {"llvmpipe", "softpipe", "swiftshader", "lavapipe"}) {
    if (text.find(word) != std::string::npos) return true;
  }
  return false;
}

std::vector<std::string> Extensions(const Driver& vk, VkPhysicalDevice id) {
  uint32_t count = 0;
  vk.vkEnumerateDeviceExtensionProperties(id, nullptr, &count, nullptr);
  std::vector<VkExtensionProperties> found(count);
  vk.vkEnumerateDeviceExtensionProperties(id, nullptr, &count, found.data());
  std::vector<std::string> names;
  for (uint32_t i = 0; i < count; ++i) names.emplace_back(found[i].extensionName);
  return names;
}

// A compute queue family; preferably one without graphics, so that a display does not compete.
bool FindQueueFamily(const Driver& vk, DeviceInfo* info) {
  uint32_t count = 0;
  vk.vkGetPhysicalDeviceQueueFamilyProperties(info->id, &count, nullptr);
  std::vector<VkQueueFamilyProperties> families(count);
  vk.vkGetPhysicalDeviceQueueFamilyProperties(info->id, &count, families.data());
  const VkQueueFamilyProperties* chosen = nullptr;
  for (const VkQueueFamilyProperties& family : families) {
    if ((family.queueFlags & VK_QUEUE_COMPUTE_BIT) == 0 || family.queueCount == 0) continue;
    if (chosen == nullptr ||
        (family.queueFlags & VK_QUEUE_GRAPHICS_BIT) < (chosen->queueFlags & VK_QUEUE_GRAPHICS_BIT)) {
      chosen = &family;
    }
  }
  if (chosen == nullptr) return false;
  info->queue_family = static_cast<uint32_t>(chosen - families.data());
  const uint32_t bits = chosen->timestampValidBits;
  info->timestamp_mask = bits >= 64 ? UINT64_MAX : (uint64_t{1} << bits) - 1;
  if (bits == 0) info->timestamp_period = 0;
  return true;
}

uint32_t FindFeatures(const Driver& vk, VkPhysicalDevice id, uint32_t subgroup_operations, bool* timeline) {
  VkPhysicalDeviceVulkan12Features twelve{};
  twelve.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES;
  VkPhysicalDeviceVulkan11Features eleven{};
  eleven.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES;
  eleven.pNext = &twelve;
  VkPhysicalDeviceFeatures2 all{};
  all.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
  all.pNext = &eleven;
  vk.vkGetPhysicalDeviceFeatures2(id, &all);
  *timeline = twelve.timelineSemaphore != VK_FALSE;
  constexpr uint32_t kOperations =
      VK_SUBGROUP_FEATURE_ARITHMETIC_BIT | VK_SUBGROUP_FEATURE_SHUFFLE_BIT | VK_SUBGROUP_FEATURE_SHUFFLE_RELATIVE_BIT;
  return (all.features.shaderInt64 ? kInt64 : 0u) | (all.features.shaderFloat64 ? kFloat64 : 0u) |
         (all.features.shaderInt16 ? kInt16 : 0u) | (twelve.shaderFloat16 ? kFloat16 : 0u) |
         (twelve.shaderInt8 ? kInt8 : 0u) | (twelve.storageBuffer8BitAccess ? kStorage8 : 0u) |
         (eleven.storageBuffer16BitAccess ? kStorage16 : 0u) |
         ((subgroup_operations & kOperations) == kOperations ? kSubgroups : 0u);
}

uint32_t NanFeatures(const VkPhysicalDeviceVulkan12Properties& twelve) {
  if (Faults::Global().NoNan()) return 0;
  return (twelve.shaderSignedZeroInfNanPreserveFloat16 ? kNan16 : 0u) |
         (twelve.shaderSignedZeroInfNanPreserveFloat32 ? kNan32 : 0u) |
         (twelve.shaderSignedZeroInfNanPreserveFloat64 ? kNan64 : 0u);
}

// Fills `info` for a device; returns the reason why it cannot be used, or an empty text.
std::string Inspect(const Driver& vk, VkPhysicalDevice id, DeviceInfo* info) {
  const std::vector<std::string> extensions = Extensions(vk, id);
  const auto has = [&](const char* name) {
    return std::find(extensions.begin(), extensions.end(), name) != extensions.end();
  };
  VkPhysicalDeviceProperties2 base{};
  base.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
  vk.vkGetPhysicalDeviceProperties2(id, &base);
  info->id = id;
  info->name = base.properties.deviceName;
  info->version = VersionText(base.properties.apiVersion);
  if (base.properties.apiVersion < kApiVersion) return "it offers Vulkan " + info->version + " and 1.2 is needed";

  VkPhysicalDeviceVulkan12Properties twelve{};
  twelve.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES;
  VkPhysicalDeviceVulkan11Properties eleven{};
  eleven.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES;
  eleven.pNext = &twelve;
  VkPhysicalDevicePushDescriptorPropertiesKHR push{};
  push.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PUSH_DESCRIPTOR_PROPERTIES_KHR;
  VkPhysicalDeviceExternalMemoryHostPropertiesEXT import{};
  import.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT;
  base.pNext = &eleven;
  if (has(VK_KHR_PUSH_DESCRIPTOR_EXTENSION_NAME) && !Faults::Global().NoPush()) {
    push.pNext = base.pNext;
    base.pNext = &push;
  }
  if (has(VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME)) {
    import.pNext = base.pNext;
    base.pNext = &import;
  }
  vk.vkGetPhysicalDeviceProperties2(id, &base);
  const VkPhysicalDeviceProperties& properties = base.properties;
  const VkPhysicalDeviceLimits& limits = properties.limits;
  info->type = properties.deviceType;
  info->driver = std::string(twelve.driverName) + " " + twelve.driverInfo;
  info->software = info->type == VK_PHYSICAL_DEVICE_TYPE_CPU || NamesSoftware(info->name + " " + info->driver);
  info->vendor_id = properties.vendorID;
  info->driver_version = properties.driverVersion;
  std::memcpy(info->cache_uuid, properties.pipelineCacheUUID, VK_UUID_SIZE);
  std::memcpy(info->device_uuid, eleven.deviceUUID, VK_UUID_SIZE);
  vk.vkGetPhysicalDeviceMemoryProperties(id, &info->memory_types);
  for (uint32_t i = 0; Faults::Global().Uncached() && i < info->memory_types.memoryTypeCount; ++i) {
    info->memory_types.memoryTypes[i].propertyFlags &= ~VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
  }
  for (uint32_t i = 0; i < info->memory_types.memoryHeapCount; ++i) {
    const VkMemoryHeap& heap = info->memory_types.memoryHeaps[i];
    if (heap.flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) info->memory = std::max<uint64_t>(info->memory, heap.size);
  }
  info->storage_range = limits.maxStorageBufferRange;
  info->max_alloc = std::min<uint64_t>({info->storage_range, eleven.maxMemoryAllocationSize, info->memory});
  info->offset_alignment = std::max<uint64_t>(1, limits.minStorageBufferOffsetAlignment);
  info->storage_buffers = std::min(
      {limits.maxPerStageDescriptorStorageBuffers, limits.maxDescriptorSetStorageBuffers, limits.maxPerStageResources});
  info->push_constants = limits.maxPushConstantsSize;
  info->shared_memory = limits.maxComputeSharedMemorySize;
  info->max_group = limits.maxComputeWorkGroupInvocations;
  std::copy_n(limits.maxComputeWorkGroupSize, 3, info->max_group_sizes);
  std::copy_n(limits.maxComputeWorkGroupCount, 3, info->max_group_counts);
  info->subgroup_size = eleven.subgroupSize;
  info->push_descriptors = push.maxPushDescriptors;
  info->import_alignment = Faults::Global().Integrated() ? 0 : import.minImportedHostPointerAlignment;
  info->timestamp_period = limits.timestampPeriod;
  info->unified = !Faults::Global().Discrete() &&
                  (info->type == VK_PHYSICAL_DEVICE_TYPE_CPU || info->type == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU);
  bool timeline = false;
  if ((eleven.subgroupSupportedStages & VK_SHADER_STAGE_COMPUTE_BIT) != 0) {
    info->subgroup_operations = eleven.subgroupSupportedOperations;
  }
  info->features = FindFeatures(vk, id, info->subgroup_operations, &timeline) | NanFeatures(twelve);
  if (!timeline) return "it has no timeline semaphores";
  return FindQueueFamily(vk, info) ? "" : "it has no compute queue";
}

int Rank(const DeviceInfo& info) {
  if (info.software) return 3;
  if (info.type == VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU) return 0;
  return info.type == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU ? 1 : 2;
}

struct Found {
  std::vector<DeviceInfo> devices;
  std::string problem;

  Found() {
    const Driver* vk = FindDriver();
    if (vk == nullptr) {
      problem = WhyNoDriver();
      return;
    }
    uint32_t count = 0;
    const VkResult result = vk->vkEnumeratePhysicalDevices(vk->instance, &count, nullptr);
    std::vector<VkPhysicalDevice> ids(count);
    if (result == VK_SUCCESS && count != 0) vk->vkEnumeratePhysicalDevices(vk->instance, &count, ids.data());
    for (VkPhysicalDevice id : ids) {
      DeviceInfo info;
      const std::string reason = Inspect(*vk, id, &info);
      if (reason.empty()) {
        devices.push_back(info);
      } else {
        problem = "'" + info.name + "' cannot be used: " + reason;
      }
    }
    std::stable_sort(devices.begin(), devices.end(),
                     [](const DeviceInfo& a, const DeviceInfo& b) { return Rank(a) < Rank(b); });
    if (!devices.empty()) {
      problem.clear();
    } else if (problem.empty()) {
      problem = "the installed Vulkan drivers offer no device";
      if (result != VK_SUCCESS) problem += " (vkEnumeratePhysicalDevices failed with " + Describe(result) + ")";
    }
  }
};

const Found& Find() {
  static const Found* found = new Found();
  return *found;
}

}  // namespace

std::string FeatureNames(uint32_t features) {
  std::string text;
  for (const auto& [feature, name] : kFeatureNames) {
    if ((features & feature) != 0) text += (text.empty() ? "" : ", ") + std::string(name);
  }
  return text;
}

bool DeviceInfo::LendsMemory() const {
  constexpr VkMemoryPropertyFlags kWanted = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT | VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
                                            VK_MEMORY_PROPERTY_HOST_COHERENT_BIT | VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
  for (uint32_t i = 0; unified && i < memory_types.memoryTypeCount; ++i) {
    if ((memory_types.memoryTypes[i].propertyFlags & kWanted) == kWanted) return true;
  }
  return false;
}

const std::vector<DeviceInfo>& AllDevices() {
  return Find().devices;
}

const std::string& WhyNoDevices() {
  return Find().problem;
}

}  // namespace heterocc::vulkan_plugin
