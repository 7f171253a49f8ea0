#include "module_format.h"

#include <tvm/ffi/c_api.h>

#include <algorithm>

#include "../common/kernel_arguments.h"
#include "../common/reader.h"
#include "error.h"
#include "platform.h"

namespace heterocc::vulkan_plugin {
namespace {

using ModuleReader = Reader<uint32_t>;

constexpr char kMagic[] = "HCVK";
constexpr uint32_t kVersion = 1;
constexpr uint32_t kMaxPushBytes = 64 << 10;  // far above the limit of any device
constexpr uint32_t kMostWorkItems = 1 << 16;  // in a row of a group, the same
constexpr size_t kSmallestKernel = 4 * 12;    // bytes of a kernel with nothing in it
constexpr int kSmallestFloat = 16;            // bits

Argument ReadArgument(ModuleReader* in, const KernelSpec& kernel, std::vector<bool>* bound) {
  const uint8_t kind = in->Number<uint8_t>();
  const uint8_t code = in->Number<uint8_t>();
  const uint8_t bits = in->Number<uint8_t>();
  if (in->Number<uint8_t>() != 0 || kind > 1) in->Damaged("an argument of an unknown kind");
  const Argument argument{kind == 0, code == kDLFloat, bits, in->Number<uint32_t>()};
  if (argument.buffer) {
    if (argument.slot >= kernel.buffers) in->Damaged("a binding out of range");
    if ((*bound)[argument.slot]) in->Damaged("a binding given twice");
    (*bound)[argument.slot] = true;
    return argument;
  }
  RequireScalar(DLDataType{code, bits, 1}, kSmallestFloat);
  const uint32_t bytes = bits / 8;
  if (argument.slot % bytes != 0 || argument.slot > kernel.push_bytes || kernel.push_bytes - argument.slot < bytes) {
    in->Damaged("a push constant outside its block");
  }
  return argument;
}

KernelSpec ReadKernel(ModuleReader* in) {
  KernelSpec kernel;
  kernel.buffers = in->Number<uint32_t>();
  kernel.push_bytes = in->Number<uint32_t>();
  if (kernel.buffers > kMaxArguments) in->Damaged("more buffers than there can be");
  if (kernel.push_bytes > kMaxPushBytes) in->Damaged("more push constants than there can be");
  std::vector<bool> bound(kernel.buffers, false);
  for (uint32_t left = in->Count(8, kMaxArguments); left > 0; --left) {
    kernel.arguments.push_back(ReadArgument(in, kernel, &bound));
  }
  if (std::count(bound.begin(), bound.end(), false) != 0) in->Damaged("a binding without an argument");
  kernel.launch = ReadLaunchTags(in);
  for (uint32_t& extent : kernel.group) {
    extent = in->Number<uint32_t>();
    if (extent == 0 || extent > kMostWorkItems) in->Damaged("a work group without work items, or with too many");
  }
  kernel.shared_bytes = in->Number<uint32_t>();
  kernel.features = in->Number<uint32_t>();
  if ((kernel.features & ~kAllFeatures) != 0) {
    Throw(ErrorClass::kModule, "a kernel needs features that this version does not know");
  }
  kernel.words = in->Numbers<uint32_t>();
  kernel.spirv = ReadSpirv(kernel.words, kernel.buffers);
  kernel.features |= kernel.spirv.features;
  const uint32_t* group = kernel.spirv.group;
  if (group[0] != 0 && !std::equal(group, group + 3, kernel.group)) in->Damaged("two sizes of one work group");
  return kernel;
}

}  // namespace

std::map<std::string, KernelSpec> ParseModule(const char* data, size_t size) {
  ModuleReader in("the Vulkan module", data, size);
  in.Header(kMagic, kVersion);
  std::map<std::string, KernelSpec> kernels;
  for (uint32_t left = in.Count(kSmallestKernel); left > 0; --left) {
    const std::string name = in.Text();
    if (name.empty()) in.Damaged("a kernel without a name");
    if (!kernels.emplace(name, ReadKernel(&in)).second) in.Damaged("two kernels have one name");
  }
  in.End();
  return kernels;
}

}  // namespace heterocc::vulkan_plugin
