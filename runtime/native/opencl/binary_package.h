// Program binaries of a module as a bundle holds them beside its code, read without trusting them.
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
