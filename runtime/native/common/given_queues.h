// The queues to which a thread has given commands, to wait for the thread's work.
//
// Every plug-in compiles this in a separate namespace, HETEROCC_PLUGIN: two plug-ins that share a class are merged at
// load.
#ifndef HETEROCC_COMMON_GIVEN_QUEUES_H_
#define HETEROCC_COMMON_GIVEN_QUEUES_H_

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace heterocc::HETEROCC_PLUGIN {

// By device index: the queue that the calling thread has given commands to since it last waited. A lost device's queue
// and its successor have the same index.
template <typename Queue>
class GivenQueues {
 public:
  static GivenQueues& OfThread() {
    thread_local GivenQueues given;
    return given;
  }

  void Note(size_t index, std::weak_ptr<Queue> queue) {
    if (queues_.size() <= index) queues_.resize(index + 1);
    queues_[index] = std::move(queue);
  }

  // Removes and returns the queue; null if there is none.
  std::shared_ptr<Queue> Take(int index) {
    if (index < 0 || static_cast<size_t>(index) >= queues_.size()) return nullptr;
    std::shared_ptr<Queue> queue = queues_[index].lock();
    queues_[index].reset();
    return queue;
  }

  void Forget(const Queue* queue) {
    for (std::weak_ptr<Queue>& given : queues_) {
      if (given.lock().get() == queue) given.reset();
    }
  }

 private:
  std::vector<std::weak_ptr<Queue>> queues_;
};

}  // namespace heterocc::HETEROCC_PLUGIN

#endif  // HETEROCC_COMMON_GIVEN_QUEUES_H_
