#include "fault.h"

#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "error.h"

namespace heterocc::vulkan_plugin {

void Fault::Arm(int64_t count, bool lasting) {
  lasting_ = lasting;
  met_ = false;
  left_ = count;
}

bool Fault::Happens() {
  int64_t value = left_.load(std::memory_order_relaxed);
  while (value > 0) {
    const int64_t next = value == 1 && lasting_ ? 1 : value - 1;
    if (!left_.compare_exchange_weak(value, next)) continue;
    if (value == 1) met_ = true;
    return value == 1;
  }
  return false;
}

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

std::string Faults::Set(const std::string& spec) {
  std::string not_met;
  for (const Named& kind : counted_) {
    if (kind.fault->Waits()) not_met += (not_met.empty() ? "" : ",") + std::string(kind.name);
    kind.fault->Arm(0, false);
  }
  std::istringstream items(spec);
  for (std::string item; std::getline(items, item, ',');) {
    if (item.empty()) continue;
    if (bool* flag = item == "no-driver"    ? &no_driver_
                     : item == "discrete"   ? &discrete_
                     : item == "integrated" ? &integrated_
                     : item == "no-push"    ? &no_push_
                                            : nullptr) {
      *flag = true;
      continue;
    }
    const size_t colon = item.find(':');
    char* end = nullptr;
    const int64_t count = colon == std::string::npos ? 0 : std::strtoll(item.c_str() + colon + 1, &end, 10);
    Fault* fault = nullptr;
    for (const Named& kind : counted_) {
      if (item.substr(0, colon) == kind.name) fault = kind.fault;
    }
    const bool lasting = end != nullptr && std::string(end) == "+";
    if (fault == nullptr || count <= 0 || (*end != '\0' && !lasting)) {
      Throw(ErrorClass::kDevice, "unknown fault '" + item + "'");
    }
    fault->Arm(count, lasting);
  }
  return not_met;
}

}  // namespace heterocc::vulkan_plugin
