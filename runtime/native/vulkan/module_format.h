// The format of Vulkan modules, which heterocc's code generator writes. The bytes are not trusted.
//
// Little endian; numbers are u32 unless another type is given:
//   "HCVK"; version (1); count of kernels, each: length and UTF-8 of its name; number of storage buffers; bytes of push
//   constants; count of arguments, each {u8 kind: 0 buffer, 1 push constant; u8 DLPack type code; u8 bits; u8 0;
//   binding or byte offset}; count of launch tags, each length and text; work group size x, y, z; bytes of shared
//   memory; features (enum Feature); count of SPIR-V words, and these.
// Threading: stateless.
#ifndef HETEROCC_VULKAN_MODULE_FORMAT_H_
#define HETEROCC_VULKAN_MODULE_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "spirv.h"

namespace heterocc::vulkan_plugin {

// An argument of a kernel, as its host code passes it.
struct Argument {
  bool buffer;
  bool real;      // of a push constant: a floating-point number
  uint8_t bits;   // of a push constant
  uint32_t slot;  // binding, or byte offset among the push constants
};

// One kernel: its code and how its host code launches it.
struct KernelSpec {
  uint32_t buffers = 0;
  uint32_t push_bytes = 0;
  std::vector<Argument> arguments;
  std::vector<int> launch;  // the launch tag of each launch argument (`LaunchTag`)
  uint32_t group[3] = {1, 1, 1};
  uint32_t shared_bytes = 0;
  uint32_t features = 0;
  std::vector<uint32_t> words;
  SpirvInfo spirv;
};

// Reads a module; throws a `module` error on bytes that are cut short, contradictory or of another format.
std::map<std::string, KernelSpec> ParseModule(const char* data, size_t size);

}  // namespace heterocc::vulkan_plugin

#endif  // HETEROCC_VULKAN_MODULE_FORMAT_H_
