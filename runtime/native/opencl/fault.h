// Simulated failures of OpenCL: what `common/common_faults.h` has, by HETEROCC_OPENCL_FAULT, and `copy:N` (the Nth copy
// that is started and not waited for fails, which shows when somebody waits).
#ifndef HETEROCC_OPENCL_FAULT_H_
#define HETEROCC_OPENCL_FAULT_H_

#include "../common/common_faults.h"

namespace heterocc::opencl_plugin {

class Faults final : public CommonFaults {
 public:
  static Faults& Global();

  bool CopyFails() { return copy_.Happens(); }

 private:
  Faults();

  Fault copy_;
};

}  // namespace heterocc::opencl_plugin

#endif  // HETEROCC_OPENCL_FAULT_H_
