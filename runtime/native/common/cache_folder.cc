#include "cache_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>

namespace heterocc::common {
namespace {

void MakeFolders(const std::string& path) {
  for (size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    mkdir(path.substr(0, slash).c_str(), 0700);
  }
}

}  // namespace

std::string CacheFolder() {
  const char* named = std::getenv("HETEROCC_CACHE");
  if (named != nullptr && *named != '\0') {
    std::string text = named;
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
    return text == "off" ? "" : named;
  }
  const char* base = std::getenv("XDG_CACHE_HOME");
  if (base != nullptr && *base == '/') return std::string(base) + "/heterocc";
  const char* home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? std::string(home) + "/.cache/heterocc" : "";
}

std::string ReadCacheFile(const std::string& path, size_t most) {
  std::string content;
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (descriptor < 0) return content;
  struct stat status{};
  if (fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
      (status.st_mode & (S_IWGRP | S_IWOTH)) == 0 && static_cast<uint64_t>(status.st_size) <= most) {
    content.resize(static_cast<size_t>(status.st_size));
    size_t done = 0;
    while (done < content.size()) {
      const ssize_t got = read(descriptor, content.data() + done, content.size() - done);
      if (got <= 0) break;
      done += static_cast<size_t>(got);
    }
    if (done != content.size()) content.clear();
  }
  close(descriptor);
  return content;
}

bool WriteCacheFile(const std::string& path, const std::string& content) {
  MakeFolders(path);
  std::string temporary = path + ".XXXXXX";
  const int descriptor = mkostemp(temporary.data(), O_CLOEXEC);
  if (descriptor < 0) return false;
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t put = write(descriptor, content.data() + done, content.size() - done);
    if (put <= 0) break;
    done += static_cast<size_t>(put);
  }
  const bool whole = done == content.size();
  if (close(descriptor) == 0 && whole && std::rename(temporary.c_str(), path.c_str()) == 0) return true;
  std::remove(temporary.c_str());
  return false;
}

}  // namespace heterocc::common
