// libFuzzer's target for ParseModule of runtime/native/vulkan/module_format.h: it returns or throws a tvm::ffi::Error.
#include <tvm/ffi/error.h>

#include <cstddef>
#include <cstdint>

#include "vulkan/module_format.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    heterocc::vulkan_plugin::ParseModule(reinterpret_cast<const char*>(data), size);
  } catch (const tvm::ffi::Error&) {
  }
  return 0;
}
