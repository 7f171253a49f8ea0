// The Vulkan devices of this machine, in the order of their TVM device index: discrete GPUs first, software last.
//
// Ownership: found once on first use, never freed. Threading: any thread.
#ifndef HETEROCC_VULKAN_PLATFORM_H_
#define HETEROCC_VULKAN_PLATFORM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "../common/devices.h"
#include "driver.h"

namespace heterocc::vulkan_plugin {

// Features of a device that kernels may need; the values are those of the module format.
enum Feature : uint32_t {
  kInt64 = 1,
  kFloat64 = 2,
  kFloat16 = 4,
  kInt8 = 8,
  kStorage8 = 16,
  kStorage16 = 32,
  kInt16 = 64,
  kSubgroups = 128,  // sums and shuffles within a subgroup
  kNan16 = 256,      // floats of so many bits keep NaN, infinities and the sign of zero if a shader requires it
  kNan32 = 512,
  kNan64 = 1024,
};
constexpr uint32_t kAllFeatures = 2047;
constexpr uint32_t kNanFeatures = kNan16 | kNan32 | kNan64;

// `int64, float16` for a set of features.
std::string FeatureNames(uint32_t features);

// A device's properties, as its driver gives them; sizes in bytes.
struct DeviceInfo {
  VkPhysicalDevice id = VK_NULL_HANDLE;
  std::string name;
  std::string driver;
  std::string version;  // of Vulkan
  VkPhysicalDeviceType type = VK_PHYSICAL_DEVICE_TYPE_OTHER;
  bool software = true;
  uint32_t vendor_id = 0;
  uint32_t driver_version = 0;
  uint8_t cache_uuid[VK_UUID_SIZE] = {};
  uint8_t device_uuid[VK_UUID_SIZE] = {};
  VkPhysicalDeviceMemoryProperties memory_types{};
  uint64_t memory = 0;     // of the largest device-local heap
  uint64_t max_alloc = 0;  // of one buffer: kernels cannot access more of it
  uint64_t storage_range = 0;
  uint64_t offset_alignment = 1;
  uint64_t import_alignment = 0;  // of imported host memory; 0 if import is not possible
  uint32_t storage_buffers = 0;   // the most of a kernel
  uint32_t push_constants = 0;
  uint32_t shared_memory = 0;
  uint32_t max_group = 1;
  uint32_t max_group_sizes[3] = {1, 1, 1};
  uint32_t max_group_counts[3] = {1, 1, 1};
  uint32_t subgroup_size = 1;
  uint32_t subgroup_operations = 0;  // VkSubgroupFeatureFlags of compute shaders
  uint32_t push_descriptors = 0;     // the most of one set; 0 if descriptors cannot be pushed
  uint32_t features = 0;             // of enum Feature
  uint32_t queue_family = 0;
  float timestamp_period = 0;  // nanoseconds per tick; 0 without timestamps
  uint64_t timestamp_mask = 0;
  bool unified = false;  // the device uses the host's memory: buffers are mapped, without staging

  // Whether kernels can run on memory that the host allocated.
  bool SharesHostMemory() const { return unified && import_alignment != 0 && type == VK_PHYSICAL_DEVICE_TYPE_CPU; }

  // Whether the host accesses device allocations as fast as its own memory.
  bool LendsMemory() const;
};

}  // namespace heterocc::vulkan_plugin

#endif  // HETEROCC_VULKAN_PLATFORM_H_
