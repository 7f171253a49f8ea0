// The format of OpenCL modules, which TVM's code generator writes. The bytes are not trusted.
//
// Little endian; counts and lengths are u64:
//   text format ("cl"); count of kernels, each: key, name, count of (u8 code, u8 bits, u16 lanes) argument types,
//   count of launch tags, count of i32 extra tags; text source, in which each kernel starts with a line `// Function:
//   NAME`.
// Threading: stateless.
#ifndef HETEROCC_OPENCL_MODULE_FORMAT_H_
#define HETEROCC_OPENCL_MODULE_FORMAT_H_

#include <dlpack/dlpack.h>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace heterocc::opencl_plugin {

// One kernel: its source and how its host code launches it.
struct KernelSpec {
  std::vector<DLDataType> arguments;
  std::vector<int> launch;  // the launch tag of each launch argument (`LaunchTag`); none is shared memory
  int dimensions = 1;
  std::string source;
};

// Reads a module; throws a `module` error on bytes that are cut short, contradictory or of another format.
std::map<std::string, KernelSpec> ParseModule(const char* data, size_t size);

}  // namespace heterocc::opencl_plugin

#endif  // HETEROCC_OPENCL_MODULE_FORMAT_H_
