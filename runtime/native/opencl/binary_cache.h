// Program binaries on disk, so that the next process need not compile.
//
// A file is named after the key of its program (`ProgramKey`), holds the SHA-256 of its content, and is checked against
// it before use. They lie in `opencl` of the cache folder, together at most HETEROCC_OPENCL_CACHE_MB megabytes (256
// unless set): those used longest ago go first. No failure here is an error: it costs time only.
// Threading: any thread; any number of processes.
#ifndef HETEROCC_OPENCL_BINARY_CACHE_H_
#define HETEROCC_OPENCL_BINARY_CACHE_H_

#include <string>

#include "../common/sha256.h"
#include "platform.h"

namespace heterocc::opencl_plugin {

// Whether binaries for a device are kept on disk. Not where its driver does so itself, unless HETEROCC_OPENCL_CACHE is
// `all`: PoCL keeps what it compiles, and compiles every kernel a second time when it is asked for a binary.
bool KeepsBinaries(const DeviceInfo& info);

// The binary of a program; empty if there is none that is whole. Marks it as used now.
std::string LoadBinary(const common::Digest& key);

void StoreBinary(const common::Digest& key, const std::string& binary);

}  // namespace heterocc::opencl_plugin

#endif  // HETEROCC_OPENCL_BINARY_CACHE_H_
