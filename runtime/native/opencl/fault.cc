#include "fault.h"

namespace heterocc::opencl_plugin {

Faults& Faults::Global() {
  static Faults* faults = new Faults();
  return *faults;
}

Faults::Faults() {
  Add("copy", &copy_);
  Add("migrate", &migrate_);
  Add("map", &map_);
  Add("move", &move_);
  Add("lost", &lost_);
  Add("foreign", &foreign_);
  Add("integrated", &integrated_);
  Add("incoherent", &incoherent_);
  ReadEnvironment("HETEROCC_OPENCL_FAULT");
}

}  // namespace heterocc::opencl_plugin
