// The common part of the plug-ins' device interfaces: the current device of a thread, attributes, workspaces.
//
// Every plug-in compiles this in a separate namespace, HETEROCC_PLUGIN: two plug-ins that share a class are merged at
// load.
//
// Ownership: buffers of workspaces go to a free-list per device and are reused; those of a lost device are freed.
// Threading: every member may be called from any thread; `SetDevice` is per thread.
#ifndef HETEROCC_COMMON_DEVICE_BASE_H_
#define HETEROCC_COMMON_DEVICE_BASE_H_

#include <tvm/runtime/device_api.h>

#include <cstddef>
#include <map>
#include <mutex>

namespace heterocc::HETEROCC_PLUGIN {

// Each plug-in's own.
struct Buffer;
struct DeviceInfo;

class DeviceBase : public tvm::runtime::DeviceAPI {
 public:
  // The device that this thread's kernels run on.
  static int CurrentDevice();

  void SetDevice(tvm::Device device) final;
  void GetAttr(tvm::Device device, tvm::runtime::DeviceAttrKind kind, tvm::ffi::Any* result) final;
  void StreamSync(tvm::Device device, TVMStreamHandle stream) final;
  void* AllocWorkspace(tvm::Device device, size_t nbytes, DLDataType type_hint) final;
  void FreeWorkspace(tvm::Device device, void* data) final;

 protected:
  DeviceBase() = default;
  ~DeviceBase() = default;

  // The attributes that differ between plug-ins.
  virtual void GetOwnAttr(const DeviceInfo& info, tvm::runtime::DeviceAttrKind kind, tvm::ffi::Any* result) = 0;

  // Frees the idle workspaces; returns their bytes by device.
  std::map<int, size_t> FreeIdleWorkspaces();

 private:
  std::mutex workspace_mutex_;
  std::map<int, std::multimap<size_t, Buffer*>> idle_workspaces_;  // device → size → buffer
};

}  // namespace heterocc::HETEROCC_PLUGIN

#endif  // HETEROCC_COMMON_DEVICE_BASE_H_
