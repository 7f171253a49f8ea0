#include "module_format.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "error.h"

namespace heterocc::opencl_plugin {
namespace {

constexpr char kFunctionMark[] = "// Function: ";
constexpr size_t kMaxArguments = 1024;  // far over what any device takes

class Reader {
 public:
  Reader(const char* data, size_t size) : at_(data), end_(data + size) {}

  template <typename T>
  T Number() {
    T value;
    Need(sizeof value);
    std::memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
    return value;
  }

  std::string Text() {
    const auto size = Number<uint64_t>();
    Need(size);
    std::string text(at_, size);
    at_ += size;
    return text;
  }

  // A count of items of at least `item` bytes each.
  uint64_t Count(size_t item, uint64_t most = UINT64_MAX) {
    const auto count = Number<uint64_t>();
    if (count > static_cast<size_t>(end_ - at_) / item || count > most) {
      Throw(ErrorClass::kModule, "the OpenCL module is damaged: a count of " + std::to_string(count));
    }
    return count;
  }

  bool AtEnd() const { return at_ == end_; }

 private:
  void Need(uint64_t size) {
    if (static_cast<uint64_t>(end_ - at_) < size) Throw(ErrorClass::kModule, "the OpenCL module is cut short");
  }

  const char* at_;
  const char* end_;
};

int LaunchAxis(const std::string& tag) {
  static constexpr const char* kTags[] = {"blockIdx.x",  "blockIdx.y",  "blockIdx.z",
                                          "threadIdx.x", "threadIdx.y", "threadIdx.z"};
  for (int axis = 0; axis < 6; ++axis) {
    if (tag == kTags[axis]) return axis;
  }
  if (tag == "tirx.use_dyn_shared_memory") {
    Throw(ErrorClass::kModule, "a kernel wants local memory sized at launch, which is not supported for OpenCL");
  }
  Throw(ErrorClass::kModule, "the OpenCL module is damaged: an unknown launch tag");
}

void CheckArgument(DLDataType type) {
  const bool handle = type.code == kDLOpaqueHandle;
  const bool integer = type.code == kDLInt || type.code == kDLUInt || type.code == kDLBool;
  const bool real = type.code == kDLFloat && (type.bits == 32 || type.bits == 64);
  const bool bits = type.bits == 8 || type.bits == 16 || type.bits == 32 || type.bits == 64;
  if (!handle && !(type.lanes == 1 && bits && (integer || real))) {
    Throw(ErrorClass::kModule, "a kernel argument has a type that OpenCL kernels cannot take");
  }
}

KernelSpec ReadKernel(Reader& in, const std::string& key) {
  KernelSpec kernel;
  if (in.Text() != key) Throw(ErrorClass::kModule, "the OpenCL module is damaged: a kernel with two names");
  for (uint64_t left = in.Count(4, kMaxArguments); left > 0; --left) {
    DLDataType type;
    type.code = in.Number<uint8_t>();
    type.bits = in.Number<uint8_t>();
    type.lanes = in.Number<uint16_t>();
    CheckArgument(type);
    kernel.arguments.push_back(type);
  }
  for (uint64_t left = in.Count(8, 6); left > 0; --left) {
    const int axis = LaunchAxis(in.Text());
    kernel.launch_axes.push_back(axis);
    kernel.dimensions = std::max(kernel.dimensions, axis % 3 + 1);
  }
  for (uint64_t left = in.Count(4, kMaxArguments); left > 0; --left) in.Number<int32_t>();
  return kernel;
}

}  // namespace

std::map<std::string, KernelSpec> ParseModule(const char* data, size_t size) {
  Reader in(data, size);
  if (in.Text() != "cl") Throw(ErrorClass::kModule, "the OpenCL module does not hold OpenCL C source");
  std::map<std::string, KernelSpec> kernels;
  for (uint64_t left = in.Count(8 * 5); left > 0; --left) {
    const std::string key = in.Text();
    if (!kernels.emplace(key, ReadKernel(in, key)).second) {
      Throw(ErrorClass::kModule, "the OpenCL module is damaged: two kernels have one name");
    }
  }
  const std::string code = in.Text();
  if (!in.AtEnd()) Throw(ErrorClass::kModule, "the OpenCL module is damaged: bytes after its end");
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
    if (kernel.source.empty()) Throw(ErrorClass::kModule, "the OpenCL module is damaged: a kernel without source");
  }
  return kernels;
}

}  // namespace heterocc::opencl_plugin
