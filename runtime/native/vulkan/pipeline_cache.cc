#include "pipeline_cache.h"

#include <cstdio>
#include <cstring>
#include <vector>

#include "../common/cache_folder.h"

namespace heterocc::vulkan_plugin {
namespace {

constexpr char kMagic[8] = {'H', 'C', 'V', 'K', 'P', 'C', '0', '1'};
constexpr size_t kMostBytes = size_t{256} << 20;  // above this size the file is started again

struct Header {
  char magic[8];
  uint64_t size;
  uint64_t checksum;
};

// FNV-1a over 64 bits: detects damage, not manipulation; the directory belongs to the user.
uint64_t Checksum(const char* data, size_t size) {
  uint64_t hash = 14695981039346656037u;
  for (size_t i = 0; i < size; ++i) hash = (hash ^ static_cast<unsigned char>(data[i])) * 1099511628211u;
  return hash;
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

std::string PathFor(const DeviceInfo& info) {
  const std::string folder = common::CacheFolder();
  return folder.empty() ? "" : folder + "/" + FileName(info);
}

std::string ReadWhole(const std::string& path) {
  const std::string content = common::ReadCacheFile(path, kMostBytes + sizeof(Header));
  Header header;
  if (content.size() < sizeof header) return "";
  std::memcpy(&header, content.data(), sizeof header);
  const size_t size = content.size() - sizeof header;
  const bool whole = std::memcmp(header.magic, kMagic, sizeof kMagic) == 0 && header.size == size &&
                     Checksum(content.data() + sizeof header, size) == header.checksum;
  return whole ? content.substr(sizeof header) : "";
}

bool WriteWhole(const std::string& path, const std::vector<char>& bytes, uint64_t checksum) {
  Header header;
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.size = bytes.size();
  header.checksum = checksum;
  std::string content(reinterpret_cast<const char*>(&header), sizeof header);
  return common::WriteCacheFile(path, content.append(bytes.data(), bytes.size()));
}

}  // namespace

PipelineCache::PipelineCache(const LogicalDevice& device) : device_(device), path_(PathFor(device.info())) {
  const std::string bytes = path_.empty() ? "" : ReadWhole(path_);
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
