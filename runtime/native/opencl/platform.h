// The OpenCL devices of this machine, in the order of their TVM device index: hardware GPUs first, software last.
//
// Ownership: found once on first use, never freed. Threading: any thread.
#ifndef HETEROCC_OPENCL_PLATFORM_H_
#define HETEROCC_OPENCL_PLATFORM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "../common/devices.h"
#include "driver.h"

namespace heterocc::opencl_plugin {

enum class DeviceKind { kGpu, kAccelerator, kCpu };

// A device's properties, as its driver gives them; sizes in bytes.
struct DeviceInfo {
  cl_platform_id platform = nullptr;
  cl_device_id id = nullptr;
  std::string name;
  std::string vendor;
  std::string platform_name;
  std::string platform_version;
  std::string version;
  std::string driver;
  std::vector<std::string> extensions;
  DeviceKind kind = DeviceKind::kCpu;
  bool software = true;
  uint64_t memory = 0;
  uint64_t max_alloc = 0;
  uint64_t local_memory = 0;
  uint64_t max_group = 1;
  size_t max_group_sizes[3] = {1, 1, 1};
  uint32_t compute_units = 1;
  uint32_t clock_mhz = 0;
  uint32_t alignment = 1;
  bool fp16 = false;
  bool fp64 = false;
  bool exact_division = false;      // the option for correctly rounded 32-bit division and square root exists
  bool unified = false;             // it uses the host's memory: copies are not needed
  bool shares_host_memory = false;  // and kernels access memory at a host pointer in place, at any time
};

// Whether a device is of PoCL's own platform.
bool IsPocl(const DeviceInfo& info);

}  // namespace heterocc::opencl_plugin

#endif  // HETEROCC_OPENCL_PLATFORM_H_
