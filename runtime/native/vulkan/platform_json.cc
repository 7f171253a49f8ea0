// The description of devices that Python reads.
#include <cstdio>

#include "../common/json.h"
#include "platform.h"

namespace heterocc::vulkan_plugin {
namespace {

std::string Hex(const uint8_t* bytes, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", bytes[i]);
    text += digits;
  }
  return text;
}

const char* TypeOf(const DeviceInfo& info) {
  switch (info.type) {
    case VK_PHYSICAL_DEVICE_TYPE_CPU:
      return "cpu";
    case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU:
    case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU:
    case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU:
      return "gpu";
    default:
      return "accelerator";
  }
}

}  // namespace

std::string DeviceAsJson(const DeviceInfo& info) {
  const auto has = [&](Feature feature) { return (info.features & feature) != 0; };
  return JsonObject()
      .Text("name", info.name)
      .Text("driver", info.driver)
      .Text("version", info.version)
      .Text("type", TypeOf(info))
      .Flag("integrated", info.type == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU)
      .Flag("software", info.software)
      .Number("vendor_id", info.vendor_id)
      .Text("uuid", Hex(info.device_uuid, VK_UUID_SIZE))
      .Number("memory", info.memory)
      .Number("max_alloc", info.max_alloc)
      .Number("storage_range", info.storage_range)
      .Number("storage_buffers", info.storage_buffers)
      .Number("push_constants", info.push_constants)
      .Number("shared_memory", info.shared_memory)
      .Number("max_group", info.max_group)
      .Triple("max_group_sizes", info.max_group_sizes)
      .Triple("max_group_counts", info.max_group_counts)
      .Number("subgroup_size", info.subgroup_size)
      .Flag("int64", has(kInt64))
      .Flag("fp64", has(kFloat64))
      .Flag("fp16", has(kFloat16))
      .Flag("int16", has(kInt16))
      .Flag("int8", has(kInt8))
      .Flag("storage8", has(kStorage8))
      .Flag("storage16", has(kStorage16))
      .Flag("subgroups", has(kSubgroups))
      .Number("subgroup_operations", info.subgroup_operations)
      .Flag("nan16", has(kNan16))
      .Flag("nan32", has(kNan32))
      .Flag("nan64", has(kNan64))
      .Flag("push_descriptors", info.push_descriptors != 0)
      .Flag("timestamps", info.timestamp_period > 0)
      .Flag("unified", info.unified)
      .Flag("shares_host_memory", info.SharesHostMemory())
      .Close();
}

}  // namespace heterocc::vulkan_plugin
