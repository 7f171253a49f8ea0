#include "kernel_arguments.h"

#include <tvm/ffi/c_api.h>

#include "error.h"

namespace heterocc::HETEROCC_PLUGIN {
namespace {

constexpr const char* kNames[kLaunchTags] = {"blockIdx.x",
                                             "blockIdx.y",
                                             "blockIdx.z",
                                             "threadIdx.x",
                                             "threadIdx.y",
                                             "threadIdx.z",
                                             "tirx.use_dyn_shared_memory"};

}  // namespace

int LaunchTag(const std::string& name) {
  for (int tag = 0; tag < kLaunchTags; ++tag) {
    if (name == kNames[tag]) return tag;
  }
  return -1;
}

void RequireScalar(DLDataType type, int smallest_float) {
  const bool integer = type.code == kDLInt || type.code == kDLUInt || type.code == kDLBool;
  const bool real = type.code == kDLFloat && type.bits >= smallest_float;
  const bool bits = type.bits == 8 || type.bits == 16 || type.bits == 32 || type.bits == 64;
  if (type.lanes != 1 || !bits || !(integer || real)) {
    Throw(ErrorClass::kModule, "a kernel argument has a type that " HETEROCC_LABEL " kernels cannot take");
  }
}

void RequireArgumentCount(const std::string& kernel, int32_t count, size_t expected) {
  if (count < 0 || static_cast<size_t>(count) != expected) {
    Throw(ErrorClass::kModule, "kernel '" + kernel + "' was called with " + std::to_string(count) + " arguments, not " +
                                   std::to_string(expected));
  }
}

std::string ArgumentName(const std::string& kernel, size_t index) {
  return "argument " + std::to_string(index) + " of kernel '" + kernel + "'";
}

}  // namespace heterocc::HETEROCC_PLUGIN
