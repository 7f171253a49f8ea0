// Headers named without a folder are the plug-in's own: every plug-in compiles this file with its folder.
#include "device_base.h"

#include <memory>
#include <string>
#include <vector>

#include "device_api.h"

namespace heterocc::HETEROCC_PLUGIN {
namespace {

namespace ffi = tvm::ffi;
using tvm::Device;

thread_local int current_device = 0;

}  // namespace

int DeviceBase::CurrentDevice() {
  return current_device;
}

void DeviceBase::SetDevice(Device device) {
  RequireDevice(device.device_id);
  current_device = device.device_id;
}

void DeviceBase::GetAttr(Device device, tvm::runtime::DeviceAttrKind kind, ffi::Any* result) {
  using namespace tvm::runtime;
  const auto count = static_cast<int64_t>(AllDevices().size());
  if (kind == kExist) {
    *result = static_cast<int64_t>(device.device_id >= 0 && device.device_id < count);
    return;
  }
  const DeviceInfo& info = RequireDevice(device.device_id);
  switch (kind) {
    case kMaxThreadsPerBlock:
      *result = static_cast<int64_t>(info.max_group);
      break;
    case kWarpSize:
      *result = static_cast<int64_t>(1);  // neither API guarantees lock-step execution of a known width
      break;
    case kComputeVersion:
      *result = ffi::String(info.version);
      break;
    case kDeviceName:
      *result = ffi::String(info.name);
      break;
    case kMaxThreadDimensions:
      *result =
          ffi::String("[" + std::to_string(info.max_group_sizes[0]) + ", " + std::to_string(info.max_group_sizes[1]) +
                      ", " + std::to_string(info.max_group_sizes[2]) + "]");
      break;
    case kDriverVersion:
      *result = ffi::String(info.driver);
      break;
    case kTotalGlobalMemory:
      *result = static_cast<int64_t>(info.memory);
      break;
    default:
      GetOwnAttr(info, kind, result);
      break;
  }
}

void DeviceBase::StreamSync(Device device, TVMStreamHandle) {
  Queue::LastUsed(device.device_id)->Finish();
}

void* DeviceBase::AllocWorkspace(Device device, size_t nbytes, DLDataType type_hint) {
  const std::shared_ptr<Queue> queue = Queue::Of(device.device_id);
  std::vector<Buffer*> dead;
  Buffer* buffer = nullptr;
  {
    std::lock_guard<std::mutex> lock(workspace_mutex_);
    auto& idle = idle_workspaces_[device.device_id];
    auto found = idle.lower_bound(nbytes);
    while (found != idle.end() && found->first <= 2 * nbytes + 4096 && buffer == nullptr) {
      (found->second->queue == queue ? buffer : dead.emplace_back()) = found->second;  // dead: of a lost device
      found = idle.erase(found);
    }
  }
  for (Buffer* old : dead) FreeDataSpace(device, old);
  if (buffer != nullptr) return buffer;
  return AllocDataSpace(device, nbytes, tvm::runtime::kTempAllocaAlignment, type_hint);
}

void DeviceBase::FreeWorkspace(Device device, void* data) {
  // Commands may still use it; the queue is in order, so its next user comes after them.
  auto* buffer = static_cast<Buffer*>(data);
  if (buffer == nullptr) return;
  if (buffer->queue->Lost()) {
    FreeDataSpace(device, data);
    return;
  }
  std::lock_guard<std::mutex> lock(workspace_mutex_);
  idle_workspaces_[device.device_id].emplace(buffer->size, buffer);
}

std::map<int, size_t> DeviceBase::FreeIdleWorkspaces() {
  std::map<int, std::multimap<size_t, Buffer*>> taken;
  {
    std::lock_guard<std::mutex> lock(workspace_mutex_);
    taken.swap(idle_workspaces_);
  }
  std::map<int, size_t> freed;
  for (auto& [index, buffers] : taken) {
    for (auto& [size, buffer] : buffers) {
      freed[index] += size;
      FreeDataSpace(Device{kPluginDevice, index}, buffer);
    }
  }
  return freed;
}

}  // namespace heterocc::HETEROCC_PLUGIN
