#include "binary_package.h"

#include <cstring>

#include "error.h"

namespace heterocc::opencl_plugin {
namespace {

constexpr char kMagic[] = "HCLB";
constexpr uint32_t kVersion = 1;

template <typename T>
void Put(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

Binaries ParseBinaries(const char* data, size_t size) {
  const char* const end = data + size;
  const auto take = [&](void* out, size_t bytes) {
    if (static_cast<size_t>(end - data) < bytes) Throw(ErrorClass::kModule, "the OpenCL binaries are cut short");
    std::memcpy(out, data, bytes);
    data += bytes;
  };
  char magic[sizeof kMagic - 1];
  take(magic, sizeof magic);
  if (std::memcmp(magic, kMagic, sizeof magic) != 0) Throw(ErrorClass::kModule, "these bytes are no OpenCL binaries");
  uint32_t version = 0;
  take(&version, sizeof version);
  if (version != kVersion) {
    Throw(ErrorClass::kModule, "the OpenCL binaries are of version " + std::to_string(version) +
                                   ", and this heterocc reads " + std::to_string(kVersion));
  }
  uint32_t count = 0;
  take(&count, sizeof count);
  Binaries binaries;
  for (; count > 0; --count) {
    common::Digest key;
    take(key.data(), key.size());
    uint64_t length = 0;
    take(&length, sizeof length);
    if (length > static_cast<uint64_t>(end - data)) Throw(ErrorClass::kModule, "the OpenCL binaries are cut short");
    if (!binaries.emplace(key, std::string(data, length)).second) {
      Throw(ErrorClass::kModule, "the OpenCL binaries are damaged: two for one program");
    }
    data += length;
  }
  if (data != end) Throw(ErrorClass::kModule, "the OpenCL binaries are damaged: bytes after their end");
  return binaries;
}

std::string PackBinaries(const Binaries& binaries) {
  std::string out(kMagic);
  Put(&out, kVersion);
  Put(&out, static_cast<uint32_t>(binaries.size()));
  for (const auto& [key, binary] : binaries) {
    out.append(reinterpret_cast<const char*>(key.data()), key.size());
    Put(&out, static_cast<uint64_t>(binary.size()));
    out += binary;
  }
  return out;
}

}  // namespace heterocc::opencl_plugin
