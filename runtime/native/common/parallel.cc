#include "parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace heterocc::HETEROCC_PLUGIN {

void InParallel(size_t count, size_t threads, const std::function<void(size_t)>& work) {
  std::vector<std::exception_ptr> failures(count);
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  // Indices are taken in order, so that every one below a failed one is run to its end.
  const auto take = [&]() {
    for (size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        failures[i] = std::current_exception();
        failed = true;
      }
      if (failed) return;
    }
  };
  std::vector<std::thread> helpers;
  helpers.reserve(std::min(threads, count));
  try {
    while (helpers.size() + 1 < std::min(threads, count)) helpers.emplace_back(take);
  } catch (const std::system_error&) {
    // The system has no more threads; those that were started do the remaining work.
  }
  take();
  for (std::thread& helper : helpers) helper.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure != nullptr) std::rethrow_exception(failure);
  }
}

}  // namespace heterocc::HETEROCC_PLUGIN
