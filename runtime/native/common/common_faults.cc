#include "common_faults.h"

#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "error.h"

namespace heterocc::HETEROCC_PLUGIN {
namespace {

// The entry of a list under a name, or null.
template <typename Target>
Target* Find(const std::vector<std::pair<std::string, Target*>>& list, const std::string& name) {
  for (const auto& [known, target] : list) {
    if (known == name) return target;
  }
  return nullptr;
}

}  // namespace

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

void CommonFaults::ReadEnvironment(const char* variable) {
  const char* spec = std::getenv(variable);
  if (spec == nullptr || *spec == '\0') return;
  try {
    Set(spec);
    std::fprintf(stderr,
                 "warning: %s is set: heterocc's " HETEROCC_LABEL
                 " plug-in simulates failures ('%s'), and results may be wrong\n",
                 variable, spec);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "warning: %s ignored: %s\n", variable, error.what());
  }
}

std::string CommonFaults::Set(const std::string& spec) {
  std::string not_met;
  for (const auto& [name, fault] : counted_) {
    if (fault->Waits()) not_met += (not_met.empty() ? "" : ",") + name;
    fault->Arm(0, false);
  }
  std::istringstream items(spec);
  for (std::string item; std::getline(items, item, ',');) {
    if (item.empty()) continue;
    if (bool* flag = Find(flags_, item)) {
      *flag = true;
      continue;
    }
    const size_t colon = item.find(':');
    char* end = nullptr;
    const int64_t count = colon == std::string::npos ? 0 : std::strtoll(item.c_str() + colon + 1, &end, 10);
    Fault* fault = Find(counted_, item.substr(0, colon));
    const bool lasting = end != nullptr && std::string(end) == "+";
    if (fault == nullptr || count <= 0 || (*end != '\0' && !lasting)) {
      Throw(ErrorClass::kDevice, "unknown fault '" + item + "'");
    }
    fault->Arm(count, lasting);
  }
  return not_met;
}

}  // namespace heterocc::HETEROCC_PLUGIN
