// libFuzzer's target for ParseBinaries of runtime/native/opencl/binary_package.h: it returns or throws a
// tvm::ffi::Error.
#include <tvm/ffi/error.h>

#include <cstddef>
#include <cstdint>

#include "opencl/binary_package.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    heterocc::opencl_plugin::ParseBinaries(reinterpret_cast<const char*>(data), size);
  } catch (const tvm::ffi::Error&) {
  }
  return 0;
}
