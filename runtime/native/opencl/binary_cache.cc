#include "binary_cache.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <tuple>
#include <vector>

#include "../common/cache_folder.h"

namespace heterocc::opencl_plugin {
namespace {

namespace fs = std::filesystem;

constexpr char kMagic[] = "HCCLBIN1";
constexpr size_t kHeader = sizeof kMagic - 1 + sizeof(common::Digest);
constexpr uint64_t kMegabyte = 1 << 20;
constexpr uint64_t kDefaultMegabytes = 256;
constexpr auto kAbandoned = std::chrono::hours(1);  // temporary files of ended processes

uint64_t Limit() {
  const char* text = std::getenv("HETEROCC_OPENCL_CACHE_MB");
  char* end = nullptr;
  const uint64_t megabytes = text == nullptr ? 0 : std::strtoull(text, &end, 10);
  const bool number = text != nullptr && end != text && *end == '\0' && megabytes < (uint64_t{1} << 40);
  return (number ? megabytes : kDefaultMegabytes) * kMegabyte;
}

std::string Folder() {
  const std::string base = common::CacheFolder();
  return base.empty() ? "" : base + "/opencl";
}

std::string PathOf(const common::Digest& key) {
  const std::string folder = Folder();
  return folder.empty() ? "" : folder + "/" + common::Hex(key) + ".bin";
}

// Removes the least recently used files until the rest has at most `limit` bytes.
void Shrink(uint64_t limit) {
  using File = std::tuple<fs::file_time_type, fs::path, uint64_t>;
  std::vector<File> files;
  uint64_t total = 0;
  std::error_code problem;
  for (fs::directory_iterator it(Folder(), problem), end; !problem && it != end; it.increment(problem)) {
    std::error_code gone;  // another process may remove files too
    const uint64_t size = it->file_size(gone);
    const fs::file_time_type used = it->last_write_time(gone);
    if (gone) continue;
    if (it->path().extension() == ".bin") {
      files.emplace_back(used, it->path(), size);
      total += size;
    } else if (fs::file_time_type::clock::now() - used > kAbandoned) {
      fs::remove(it->path(), gone);
    }
  }
  if (total <= limit) return;
  std::sort(files.begin(), files.end());
  for (const auto& [used, path, size] : files) {
    if (total <= limit) return;
    fs::remove(path, problem);
    total -= size;
  }
}

}  // namespace

bool KeepsBinaries(const DeviceInfo& info) {
  if (!IsPocl(info)) return true;
  const char* named = std::getenv("HETEROCC_OPENCL_CACHE");
  return named != nullptr && std::strcmp(named, "all") == 0;
}

std::string LoadBinary(const common::Digest& key) {
  const std::string path = PathOf(key);
  if (path.empty()) return "";
  const std::string content = common::ReadCacheFile(path, Limit() + kHeader);
  if (content.size() <= kHeader || content.compare(0, sizeof kMagic - 1, kMagic) != 0) return "";
  const common::Digest digest = common::Sha256(content.data() + kHeader, content.size() - kHeader);
  if (std::memcmp(content.data() + sizeof kMagic - 1, digest.data(), digest.size()) != 0) return "";
  utimensat(AT_FDCWD, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
  return content.substr(kHeader);
}

void StoreBinary(const common::Digest& key, const std::string& binary) {
  const std::string path = PathOf(key);
  const uint64_t limit = Limit();
  if (path.empty() || binary.empty() || binary.size() + kHeader > limit) return;
  const common::Digest digest = common::Sha256(binary.data(), binary.size());
  std::string content(kMagic);
  content.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  if (common::WriteCacheFile(path, content + binary)) Shrink(limit);
}

}  // namespace heterocc::opencl_plugin
