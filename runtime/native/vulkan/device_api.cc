#include "device_api.h"

#include <memory>
#include <vector>

#include "error.h"

namespace heterocc::vulkan_plugin {
namespace {

namespace ffi = tvm::ffi;
using tvm::Device;

Buffer* Cast(const void* data) {
  return static_cast<Buffer*>(const_cast<void*>(data));
}

}  // namespace

VulkanDeviceAPI* VulkanDeviceAPI::Global() {
  static VulkanDeviceAPI* api = new VulkanDeviceAPI();  // never destroyed: it outlives tensors and modules
  return api;
}

void VulkanDeviceAPI::GetOwnAttr(const DeviceInfo& info, tvm::runtime::DeviceAttrKind kind, ffi::Any* result) {
  if (kind == tvm::runtime::kMaxSharedMemoryPerBlock) *result = static_cast<int64_t>(info.shared_memory);
}

void VulkanDeviceAPI::GetTargetProperty(Device device, const std::string& property, ffi::Any* result) {
  const DeviceInfo& info = RequireDevice(device.device_id);
  const auto feature = [&](Feature bit) { *result = (info.features & bit) != 0; };
  if (property == "max_threads_per_block" || property == "max_num_threads") {
    *result = static_cast<int64_t>(info.max_group);
  } else if (property == "max_shared_memory_per_block") {
    *result = static_cast<int64_t>(info.shared_memory);
  } else if (property == "thread_warp_size") {
    *result = static_cast<int64_t>(1);
  } else if (property == "max_push_constants_size") {
    *result = static_cast<int64_t>(info.push_constants);
  } else if (property == "max_storage_buffer_range") {
    *result = static_cast<int64_t>(info.storage_range);
  } else if (property == "max_per_stage_descriptor_storage_buffer") {
    *result = static_cast<int64_t>(info.storage_buffers);
  } else if (property == "supports_float16") {
    feature(kFloat16);
  } else if (property == "supports_float64") {
    feature(kFloat64);
  } else if (property == "supports_int8") {
    feature(kInt8);
  } else if (property == "supports_int16") {
    feature(kInt16);
  } else if (property == "supports_int64") {
    feature(kInt64);
  } else if (property == "supports_8bit_buffer") {
    feature(kStorage8);
  } else if (property == "supports_16bit_buffer") {
    feature(kStorage16);
  } else if (property == "supports_storage_buffer_storage_class") {
    *result = true;
  }
}

void* VulkanDeviceAPI::AllocDataSpace(Device device, size_t nbytes, size_t alignment, DLDataType) {
  const std::shared_ptr<Queue> queue = Queue::Of(device.device_id);
  try {
    return queue->Allocate(nbytes, alignment);
  } catch (const ffi::Error&) {
    // Freeing memory does not help if a limit is exceeded.
    if (nbytes > queue->info().max_alloc || Trim() == 0) throw;
  }
  return queue->Allocate(nbytes, alignment);
}

void VulkanDeviceAPI::FreeDataSpace(Device, void* data) {
  if (data == nullptr) return;
  auto* buffer = static_cast<Buffer*>(data);
  const std::shared_ptr<Queue> queue = buffer->queue;  // the queue must outlive this call
  queue->Free(buffer);
}

size_t VulkanDeviceAPI::Trim() {
  size_t freed = 0;
  for (const auto& [index, nbytes] : FreeIdleWorkspaces()) freed += nbytes;
  return freed + Queue::TrimAll();
}

void* VulkanDeviceAPI::Borrow(int device, void* host, size_t nbytes) {
  const std::shared_ptr<Queue> queue = Queue::Of(device);
  const DeviceInfo& info = queue->info();
  if (!info.SharesHostMemory()) {
    Throw(ErrorClass::kDevice, "'" + info.name + "' does not share the host's memory: copy instead");
  }
  if (host == nullptr || nbytes == 0) Throw(ErrorClass::kDevice, "there is no memory to share");
  if (reinterpret_cast<uintptr_t>(host) % 64 != 0) {
    Throw(ErrorClass::kDevice, "memory to share with '" + info.name + "' must lie at a 64-byte boundary");
  }
  return queue->Borrow(host, nbytes);
}

void VulkanDeviceAPI::CopyDataFromTo(const void* from, size_t from_offset, void* to, size_t to_offset, size_t nbytes,
                                     Device from_device, Device to_device, DLDataType, TVMStreamHandle) {
  if (nbytes == 0) return;
  const bool from_vulkan = from_device.device_type == kDLVulkan;
  const bool to_vulkan = to_device.device_type == kDLVulkan;
  const auto check = [&](const Buffer* buffer, size_t offset) {
    if (offset > buffer->size || nbytes > buffer->size - offset) {
      Throw(ErrorClass::kDevice, "a copy of " + Bytes(nbytes) + " at " + std::to_string(offset) +
                                     " leaves its allocation of " + Bytes(buffer->size));
    }
  };
  if (from_vulkan) check(Cast(from), from_offset);
  if (to_vulkan) check(Cast(to), to_offset);
  if (from_vulkan && to_vulkan) {
    Buffer* source = Cast(from);
    Buffer* target = Cast(to);
    if (source->queue == target->queue) {
      source->queue->Copy(source, from_offset, target, to_offset, nbytes);
    } else {
      std::vector<char> staging(nbytes);
      source->queue->Read(source, from_offset, staging.data(), nbytes);
      target->queue->Write(staging.data(), target, to_offset, nbytes);
    }
  } else if (from_vulkan) {
    Cast(from)->queue->Read(Cast(from), from_offset, static_cast<char*>(to) + to_offset, nbytes);
  } else {
    Cast(to)->queue->Write(static_cast<const char*>(from) + from_offset, Cast(to), to_offset, nbytes);
  }
}

}  // namespace heterocc::vulkan_plugin
