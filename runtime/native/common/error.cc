#include "error.h"

#include <tvm/ffi/error.h>

namespace heterocc::HETEROCC_PLUGIN {
namespace {

const char* NameOf(ErrorClass error_class) {
  switch (error_class) {
    case ErrorClass::kMemory:
      return "memory";
    case ErrorClass::kBuild:
      return "build";
    case ErrorClass::kDriver:
      return "driver";
    case ErrorClass::kModule:
      return "module";
    case ErrorClass::kDevice:
      break;
  }
  return "device";
}

}  // namespace

void Throw(ErrorClass error_class, const std::string& message) {
  const char* kind = error_class == ErrorClass::kModule ? "ValueError" : "RuntimeError";
  throw tvm::ffi::Error(kind, std::string("heterocc." HETEROCC_NAME "[") + NameOf(error_class) + "]: " + message, "");
}

void ThrowFailed(ErrorClass error_class, const char* call, const std::string& reason, const std::string& context) {
  Throw(error_class, std::string(call) + " failed with " + reason + (context.empty() ? "" : "; " + context));
}

std::string Bytes(uint64_t count) {
  return std::to_string(count) + " bytes";
}

}  // namespace heterocc::HETEROCC_PLUGIN
