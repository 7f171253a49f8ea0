#include "module_format.h"

#include <algorithm>
#include <cstdint>

#include "../common/kernel_arguments.h"
#include "../common/reader.h"
#include "error.h"

namespace heterocc::opencl_plugin {
namespace {

using ModuleReader = Reader<uint64_t>;

constexpr char kFunctionMark[] = "// Function: ";
constexpr int kSmallestFloat = 32;  // bits

KernelSpec ReadKernel(ModuleReader* in, const std::string& key) {
  KernelSpec kernel;
  if (in->Text() != key) in->Damaged("a kernel with two names");
  for (uint64_t left = in->Count(4, kMaxArguments); left > 0; --left) {
    DLDataType type;
    type.code = in->Number<uint8_t>();
    type.bits = in->Number<uint8_t>();
    type.lanes = in->Number<uint16_t>();
    if (type.code != kDLOpaqueHandle) RequireScalar(type, kSmallestFloat);
    kernel.arguments.push_back(type);
  }
  kernel.launch = ReadLaunchTags(in);
  for (const int tag : kernel.launch) {
    if (tag == kDynamicShared) {
      Throw(ErrorClass::kModule, "a kernel wants local memory sized at launch, which is not supported for OpenCL");
    }
    kernel.dimensions = std::max(kernel.dimensions, tag % 3 + 1);
  }
  for (uint64_t left = in->Count(4, kMaxArguments); left > 0; --left) in->Number<int32_t>();
  return kernel;
}

}  // namespace

std::map<std::string, KernelSpec> ParseModule(const char* data, size_t size) {
  ModuleReader in("the OpenCL module", data, size);
  if (in.Text() != "cl") Throw(ErrorClass::kModule, "the OpenCL module does not hold OpenCL C source");
  std::map<std::string, KernelSpec> kernels;
  for (uint64_t left = in.Count(8 * 5); left > 0; --left) {
    const std::string key = in.Text();
    if (!kernels.emplace(key, ReadKernel(&in, key)).second) in.Damaged("two kernels have one name");
  }
  const std::string code = in.Text();
  in.End();
  const size_t mark_size = sizeof kFunctionMark - 1;
  for (size_t mark = code.find(kFunctionMark); mark != std::string::npos;) {
    const size_t line_end = std::min(code.find('\n', mark), code.size());
    const size_t next = code.find(kFunctionMark, line_end);
    const auto found = kernels.find(code.substr(mark + mark_size, line_end - mark - mark_size));
    if (found != kernels.end()) {
      found->second.source = code.substr(line_end, next == std::string::npos ? next : next - line_end);
    }
    mark = next;
  }
  for (const auto& [name, kernel] : kernels) {
    if (kernel.source.empty()) in.Damaged("a kernel without source");
  }
  return kernels;
}

}  // namespace heterocc::opencl_plugin
