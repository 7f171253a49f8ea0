#include "fault.h"

#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "error.h"

namespace heterocc::vulkan_plugin {

Faults& Faults::Global() {
  static Faults* faults = new Faults();
  return *faults;
}

Faults::Faults() {
  const char* spec = std::getenv("HETEROCC_VULKAN_FAULT");
  if (spec == nullptr) return;
  try {
    Set(spec);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "warning: HETEROCC_VULKAN_FAULT ignored: %s\n", error.what());
  }
}

void Faults::Set(const std::string& spec) {
  alloc_ = launch_ = build_ = lost_ = 0;
  std::istringstream items(spec);
  for (std::string item; std::getline(items, item, ',');) {
    if (item.empty()) continue;
    if (bool* flag = item == "no-driver"  ? &no_driver_
                     : item == "discrete" ? &discrete_
                     : item == "no-push"  ? &no_push_
                                          : nullptr) {
      *flag = true;
      continue;
    }
    const size_t colon = item.find(':');
    const std::string name = item.substr(0, colon);
    const int64_t count = colon == std::string::npos ? 0 : std::strtoll(item.c_str() + colon + 1, nullptr, 10);
    std::atomic<int64_t>* left = name == "alloc"    ? &alloc_
                                 : name == "launch" ? &launch_
                                 : name == "build"  ? &build_
                                 : name == "lost"   ? &lost_
                                                    : nullptr;
    if (left == nullptr || count <= 0) Throw(ErrorClass::kDevice, "unknown fault '" + item + "'");
    *left = count;
  }
}

bool Faults::Count(std::atomic<int64_t>* left) {
  int64_t value = left->load(std::memory_order_relaxed);
  while (value > 0) {
    if (left->compare_exchange_weak(value, value - 1)) return value == 1;
  }
  return false;
}

}  // namespace heterocc::vulkan_plugin
