// The format of a module's program binaries in a bundle. The bytes are not trusted.
//
// Little endian: "HCLB", u32 version (1), u32 count, then per program in order of key: 32 bytes key (`ProgramKey`),
// u64 length, binary.
// Threading: stateless.
#ifndef HETEROCC_OPENCL_BINARY_PACKAGE_H_
#define HETEROCC_OPENCL_BINARY_PACKAGE_H_

#include <cstddef>
#include <map>
#include <string>

#include "../common/sha256.h"

namespace heterocc::opencl_plugin {

using Binaries = std::map<common::Digest, std::string>;

// Throws a `module` error for bytes that are cut short, contradictory or of another format.
Binaries ParseBinaries(const char* data, size_t size);

std::string PackBinaries(const Binaries& binaries);

}  // namespace heterocc::opencl_plugin

#endif  // HETEROCC_OPENCL_BINARY_PACKAGE_H_
