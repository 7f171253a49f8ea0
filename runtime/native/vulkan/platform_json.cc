// The description of devices that Python reads.
#include <cstdio>
#include <sstream>

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

std::string Triple(const uint32_t* values) {
  return "[" + std::to_string(values[0]) + ", " + std::to_string(values[1]) + ", " + std::to_string(values[2]) + "]";
}

}  // namespace

std::string DevicesAsJson() {
  std::ostringstream out;
  const char* separator = "";
  const auto yes = [](bool value) { return value ? "true" : "false"; };
  out << "{\"problem\": " << (WhyNoDevices().empty() ? "null" : Quoted(WhyNoDevices())) << ", \"devices\": [";
  for (const DeviceInfo& d : AllDevices()) {
    const auto feature = [&](Feature bit) { return yes((d.features & bit) != 0); };
    out << separator << "{\"name\": " << Quoted(d.name) << ", \"driver\": " << Quoted(d.driver)
        << ", \"version\": " << Quoted(d.version) << ", \"type\": \"" << TypeOf(d)
        << "\", \"integrated\": " << yes(d.type == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU)
        << ", \"software\": " << yes(d.software) << ", \"vendor_id\": " << d.vendor_id << ", \"uuid\": \""
        << Hex(d.device_uuid, VK_UUID_SIZE) << "\", \"memory\": " << d.memory << ", \"max_alloc\": " << d.max_alloc
        << ", \"storage_range\": " << d.storage_range << ", \"storage_buffers\": " << d.storage_buffers
        << ", \"push_constants\": " << d.push_constants << ", \"shared_memory\": " << d.shared_memory
        << ", \"max_group\": " << d.max_group << ", \"max_group_sizes\": " << Triple(d.max_group_sizes)
        << ", \"max_group_counts\": " << Triple(d.max_group_counts) << ", \"subgroup_size\": " << d.subgroup_size
        << ", \"int64\": " << feature(kInt64) << ", \"fp64\": " << feature(kFloat64)
        << ", \"fp16\": " << feature(kFloat16) << ", \"int16\": " << feature(kInt16) << ", \"int8\": " << feature(kInt8)
        << ", \"storage8\": " << feature(kStorage8) << ", \"storage16\": " << feature(kStorage16)
        << ", \"subgroups\": " << feature(kSubgroups) << ", \"subgroup_operations\": " << d.subgroup_operations
        << ", \"nan16\": " << feature(kNan16) << ", \"nan32\": " << feature(kNan32)
        << ", \"nan64\": " << feature(kNan64) << ", \"push_descriptors\": " << yes(d.push_descriptors != 0)
        << ", \"timestamps\": " << yes(d.timestamp_period > 0) << ", \"unified\": " << yes(d.unified)
        << ", \"shares_host_memory\": " << yes(d.SharesHostMemory()) << "}";
    separator = ", ";
  }
  out << "]}";
  return out.str();
}

}  // namespace heterocc::vulkan_plugin
