// The queues of all devices, and requests to all of them.
#include "../common/given_queues.h"
#include "queue.h"

namespace heterocc::vulkan_plugin {

namespace {

struct Registry {
  std::mutex mutex;
  std::vector<std::shared_ptr<Queue>> queues;  // by device index; null until used
  bool profiling = false;
};

Registry& Queues() {
  static Registry* registry = new Registry();
  return *registry;
}

}  // namespace

void Queue::GivenTo() {
  GivenQueues<Queue>::OfThread().Note(&info() - AllDevices().data(), weak_from_this());
}

std::shared_ptr<Queue> Queue::LastUsed(int index) {
  std::shared_ptr<Queue> queue = GivenQueues<Queue>::OfThread().Take(index);
  return queue == nullptr ? Of(index) : queue;
}

std::shared_ptr<Queue> Queue::Of(int index) {
  const DeviceInfo& info = RequireDevice(index);
  Registry& registry = Queues();
  std::lock_guard<std::mutex> lock(registry.mutex);
  registry.queues.resize(AllDevices().size());
  std::shared_ptr<Queue>& queue = registry.queues[index];
  if (queue == nullptr || queue->Lost()) {
    auto made = std::make_shared<Queue>(info);
    made->Profile(registry.profiling);
    queue = std::move(made);
  }
  return queue;
}

void Queue::SetProfiling(bool enabled) {
  Registry& registry = Queues();
  std::lock_guard<std::mutex> lock(registry.mutex);
  registry.profiling = enabled;
  for (const std::shared_ptr<Queue>& queue : registry.queues) {
    if (queue != nullptr) queue->Profile(enabled);
  }
}

uint64_t Queue::TrimAll() {
  Registry& registry = Queues();
  std::lock_guard<std::mutex> lock(registry.mutex);
  uint64_t freed = 0;
  for (const std::shared_ptr<Queue>& queue : registry.queues) {
    if (queue != nullptr && !queue->Lost()) freed += queue->Trim();
  }
  return freed;
}

std::vector<KernelTime> Queue::TakeProfile(int64_t owner) {
  Registry& registry = Queues();
  std::lock_guard<std::mutex> lock(registry.mutex);
  std::vector<KernelTime> all;
  for (const std::shared_ptr<Queue>& queue : registry.queues) {
    if (queue != nullptr) queue->TakeTimes(owner, &all);
  }
  return all;
}

}  // namespace heterocc::vulkan_plugin
