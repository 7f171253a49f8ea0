#include "pipeline_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace heterocc::vulkan_plugin {
namespace {

constexpr char kMagic[8] = {'H', 'C', 'V', 'K', 'P', 'C', '0', '1'};
constexpr size_t kMostBytes = size_t{256} << 20;  // beyond it the file starts anew

struct Header {
  char magic[8];
  uint64_t size;
  uint64_t checksum;
};

// FNV-1a over 64 bits: finds damage, not malice; the directory is the user's own.
uint64_t Checksum(const char* data, size_t size) {
  uint64_t hash = 14695981039346656037u;
  for (size_t i = 0; i < size; ++i) hash = (hash ^ static_cast<unsigned char>(data[i])) * 1099511628211u;
  return hash;
}

std::string CacheFolder() {
  const char* named = std::getenv("HETEROCC_CACHE");
  if (named != nullptr && *named != '\0') {
    std::string text = named;
    for (char& c : text) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    return text == "off" ? "" : named;
  }
  const char* base = std::getenv("XDG_CACHE_HOME");
  if (base != nullptr && *base == '/') return std::string(base) + "/heterocc";
  const char* home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? std::string(home) + "/.cache/heterocc" : "";
}

std::string FileName(const DeviceInfo& info) {
  std::string name = "vulkan-";
  char text[16];
  for (const uint8_t* uuid : {info.device_uuid, info.cache_uuid}) {
    for (size_t i = 0; i < VK_UUID_SIZE; ++i) {
      std::snprintf(text, sizeof text, "%02x", uuid[i]);
      name += text;
    }
    name += '-';
  }
  std::snprintf(text, sizeof text, "%08x", info.driver_version);
  return name + text + ".pipelines";
}

std::vector<char> ReadWhole(const std::string& path) {
  std::vector<char> bytes;
  std::FILE* file = std::fopen(path.c_str(), "rbe");
  if (file == nullptr) return bytes;
  Header header;
  struct stat status {};
  if (fstat(fileno(file), &status) == 0 && S_ISREG(status.st_mode) &&
      std::fread(&header, sizeof header, 1, file) == 1 && std::memcmp(header.magic, kMagic, sizeof kMagic) == 0 &&
      header.size <= kMostBytes && static_cast<uint64_t>(status.st_size) == sizeof header + header.size) {
    bytes.resize(header.size);
    if (std::fread(bytes.data(), 1, bytes.size(), file) != bytes.size() ||
        Checksum(bytes.data(), bytes.size()) != header.checksum) {
      bytes.clear();
    }
  }
  std::fclose(file);
  return bytes;
}

void MakeFolders(const std::string& path) {
  for (size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    mkdir(path.substr(0, slash).c_str(), 0700);
  }
}

// Writes a file beside `path` and renames it: readers see an old file, a new one or none.
bool WriteWhole(const std::string& path, const std::vector<char>& bytes, uint64_t checksum) {
  MakeFolders(path);
  std::string temporary = path + ".XXXXXX";
  const int descriptor = mkostemp(temporary.data(), O_CLOEXEC);
  if (descriptor < 0) return false;
  Header header;
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.size = bytes.size();
  header.checksum = checksum;
  std::FILE* file = fdopen(descriptor, "wb");
  bool good = file != nullptr && std::fwrite(&header, sizeof header, 1, file) == 1 &&
              std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  if (file == nullptr) {
    close(descriptor);
  } else {
    good = std::fclose(file) == 0 && good;
  }
  if (good && std::rename(temporary.c_str(), path.c_str()) == 0) return true;
  std::remove(temporary.c_str());
  return false;
}

}  // namespace

PipelineCache::PipelineCache(const LogicalDevice& device)
    : device_(device), path_(CacheFolder().empty() ? "" : CacheFolder() + "/" + FileName(device.info())) {
  const std::vector<char> bytes = path_.empty() ? std::vector<char>() : ReadWhole(path_);
  VkPipelineCacheCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO;
  info.initialDataSize = bytes.size();
  info.pInitialData = bytes.data();
  const DeviceFunctions& vk = device_.vk();
  if (vk.vkCreatePipelineCache(device_.handle(), &info, nullptr, &handle_) == VK_SUCCESS) {
    saved_ = Checksum(bytes.data(), bytes.size());
    return;
  }
  info.initialDataSize = 0;
  if (vk.vkCreatePipelineCache(device_.handle(), &info, nullptr, &handle_) != VK_SUCCESS) handle_ = VK_NULL_HANDLE;
}

PipelineCache::~PipelineCache() {
  device_.vk().vkDestroyPipelineCache(device_.handle(), handle_, nullptr);
}

void PipelineCache::SaveIfGrown() {
  if (path_.empty() || handle_ == VK_NULL_HANDLE || !grown_.exchange(false)) return;
  std::lock_guard<std::mutex> lock(saving_);
  const DeviceFunctions& vk = device_.vk();
  size_t size = 0;
  if (vk.vkGetPipelineCacheData(device_.handle(), handle_, &size, nullptr) != VK_SUCCESS || size > kMostBytes) return;
  std::vector<char> bytes(size);
  const VkResult result = vk.vkGetPipelineCacheData(device_.handle(), handle_, &size, bytes.data());
  bytes.resize(size);
  const uint64_t checksum = Checksum(bytes.data(), bytes.size());
  if (result == VK_SUCCESS && checksum != saved_ && WriteWhole(path_, bytes, checksum)) saved_ = checksum;
}

}  // namespace heterocc::vulkan_plugin
