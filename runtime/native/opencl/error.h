// Error codes of OpenCL as errors of the plug-in.
//
// Threading: stateless.
#ifndef HETEROCC_OPENCL_ERROR_H_
#define HETEROCC_OPENCL_ERROR_H_

#include <string>

#include "../common/error.h"
#include "driver.h"

namespace heterocc::opencl_plugin {

// `CL_OUT_OF_RESOURCES (-5): the device has no resources left`.
std::string Describe(cl_int code);

// Throws when `code` is not CL_SUCCESS; `call` is the API call, `context` its purpose (may be empty).
void Check(cl_int code, const char* call, const std::string& context = "");

}  // namespace heterocc::opencl_plugin

#endif  // HETEROCC_OPENCL_ERROR_H_
