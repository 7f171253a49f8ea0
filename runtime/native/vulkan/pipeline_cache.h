// The driver's compiled kernels, kept on disk for later processes.
//
// The file is in `$HETEROCC_CACHE` (`off` for none), else in `heterocc` of the XDG cache directory, and is named
// after the device and its driver's version. It is replaced atomically. A damaged file is ignored.
//
// Ownership: owns its VkPipelineCache. Threading: any thread.
#ifndef HETEROCC_VULKAN_PIPELINE_CACHE_H_
#define HETEROCC_VULKAN_PIPELINE_CACHE_H_

#include <atomic>
#include <mutex>
#include <string>

#include "logical_device.h"

namespace heterocc::vulkan_plugin {

class PipelineCache {
 public:
  explicit PipelineCache(const LogicalDevice& device);
  ~PipelineCache();
  PipelineCache(const PipelineCache&) = delete;
  PipelineCache& operator=(const PipelineCache&) = delete;

  VkPipelineCache handle() const { return handle_; }

  // Call after a pipeline was made.
  void Grown() { grown_ = true; }

  // Writes the file if pipelines were made since the last call. A failure to write is ignored: it costs only time.
  void SaveIfGrown();

 private:
  const LogicalDevice& device_;
  const std::string path_;  // empty if nothing is kept
  VkPipelineCache handle_ = VK_NULL_HANDLE;
  std::atomic<bool> grown_{false};
  std::mutex saving_;
  uint64_t saved_ = 0;  // checksum of the file's content
};

}  // namespace heterocc::vulkan_plugin

#endif  // HETEROCC_VULKAN_PIPELINE_CACHE_H_
