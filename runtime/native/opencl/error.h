// Errors of the plug-in: every one starts with `heterocc.opencl[CLASS]: ` so that Python can tell the classes apart.
//
// Threading: stateless.
#ifndef HETEROCC_OPENCL_ERROR_H_
#define HETEROCC_OPENCL_ERROR_H_

#include <string>

#include "driver.h"

namespace heterocc::opencl_plugin {

enum class ErrorClass {
  kMemory,  // out of memory, or over the limit of one buffer
  kDevice,  // a call that failed for another reason
  kBuild,   // the driver's compiler refused a kernel
  kDriver,  // no driver, or no device
  kModule,  // bytes that are no OpenCL module
};

// Throws a tvm::ffi::Error with the class's prefix.
[[noreturn]] void Throw(ErrorClass error_class, const std::string& message);

// `CL_OUT_OF_RESOURCES (-5): the device has no resources left`.
std::string Describe(cl_int code);

// Throws when `code` is not CL_SUCCESS; `call` is the API call, `context` what it was for (may be empty).
void Check(cl_int code, const char* call, const std::string& context = "");

}  // namespace heterocc::opencl_plugin

#endif  // HETEROCC_OPENCL_ERROR_H_
