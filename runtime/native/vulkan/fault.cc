#include "fault.h"

namespace heterocc::vulkan_plugin {

Faults& Faults::Global() {
  static Faults* faults = new Faults();
  return *faults;
}

Faults::Faults() {
  Add("lost", &lost_);
  Add("integrated", &integrated_);
  Add("uncached", &uncached_);
  Add("slow", &slow_);
  Add("no-push", &no_push_);
  Add("no-nan", &no_nan_);
  ReadEnvironment("HETEROCC_VULKAN_FAULT");
}

}  // namespace heterocc::vulkan_plugin
