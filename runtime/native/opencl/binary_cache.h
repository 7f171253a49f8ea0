// Program binaries on disk, for later processes.
//
// A file is named after the key of its program (`ProgramKey`), holds the SHA-256 of its content, which is
// checked before use. The files are in `opencl` of the cache folder, at most HETEROCC_OPENCL_CACHE_MB megabytes
// together (default 256); the least recently used are removed first. Failures are ignored: they cost only time.
// Threading: any thread; any number of processes.
#ifndef HETEROCC_OPENCL_BINARY_CACHE_H_
#define HETEROCC_OPENCL_BINARY_CACHE_H_

#include <string>

#include "../common/sha256.h"
#include "platform.h"

namespace heterocc::opencl_plugin {

// Whether binaries for a device are kept on disk. Not if its driver does so itself, unless HETEROCC_OPENCL_CACHE is
// `all`: PoCL keeps its binaries, and compiles every kernel a second time when a binary is requested.
bool KeepsBinaries(const DeviceInfo& info);

// The binary of a program; empty if there is no intact one. Marks it as used now.
std::string LoadBinary(const common::Digest& key);

void StoreBinary(const common::Digest& key, const std::string& binary);

}  // namespace heterocc::opencl_plugin

#endif  // HETEROCC_OPENCL_BINARY_CACHE_H_
