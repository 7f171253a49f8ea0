// The description of devices that Python reads.
#include "../common/json.h"
#include "platform.h"

namespace heterocc::opencl_plugin {
namespace {

const char* NameOf(DeviceKind kind) {
  return kind == DeviceKind::kGpu ? "gpu" : kind == DeviceKind::kCpu ? "cpu" : "accelerator";
}

}  // namespace

std::string DeviceAsJson(const DeviceInfo& info) {
  return JsonObject()
      .Text("name", info.name)
      .Text("vendor", info.vendor)
      .Text("platform", info.platform_name)
      .Text("version", info.version)
      .Text("driver", info.driver)
      .Text("type", NameOf(info.kind))
      .Flag("software", info.software)
      .Number("memory", info.memory)
      .Number("max_alloc", info.max_alloc)
      .Number("local_memory", info.local_memory)
      .Number("max_group", info.max_group)
      .Triple("max_group_sizes", info.max_group_sizes)
      .Number("compute_units", info.compute_units)
      .Number("clock_mhz", info.clock_mhz)
      .Number("alignment", info.alignment)
      .Flag("fp16", info.fp16)
      .Flag("fp64", info.fp64)
      .Flag("unified", info.unified)
      .Flag("shares_host_memory", info.shares_host_memory)
      .Texts("extensions", info.extensions)
      .Close();
}

}  // namespace heterocc::opencl_plugin
