// Properties of a SPIR-V kernel: its entry point, the features that it needs, the buffers that it writes.
//
// Only the declarations before the first function are read. The bytes are not trusted. Threading: stateless.
#ifndef HETEROCC_VULKAN_SPIRV_H_
#define HETEROCC_VULKAN_SPIRV_H_

#include <cstdint>
#include <string>
#include <vector>

namespace heterocc::vulkan_plugin {

struct SpirvInfo {
  std::string entry;              // of the compute shader
  uint32_t group[3] = {0, 0, 0};  // work items of a work group; zeros if they are not literals
  uint32_t features = 0;          // of enum Feature, by the capabilities and execution modes declared
  std::vector<bool> writable;     // by binding of set 0: buffers that are not marked NonWritable
};

// Reads a module of `bindings` storage buffers. Throws a `module` error on words that are not SPIR-V, do not have
// exactly one compute shader, require features that the plug-in does not enable, or use buffers that the host code does
// not pass.
SpirvInfo ReadSpirv(const std::vector<uint32_t>& words, uint32_t bindings);

}  // namespace heterocc::vulkan_plugin

#endif  // HETEROCC_VULKAN_SPIRV_H_
