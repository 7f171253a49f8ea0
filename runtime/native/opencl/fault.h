// Simulated failures of OpenCL: what `common/common_faults.h` has, by HETEROCC_OPENCL_FAULT, and `copy:N` (the Nth copy
// that is started and not waited for fails, which shows when somebody waits), `migrate:N` (the Nth buffer that is made
// on a device with memory of its own finds none there), `map:N` (the Nth map of lent memory fails), `move:N` (the Nth,
// those of new memory left out, finds it elsewhere), `lost:N` (the Nth command loses the device).
//
// Read from the environment only: `foreign` (PoCL's platform goes by another name), `integrated` (a CPU passes for an
// integrated GPU: it lends memory to the host and takes none), `incoherent` (the same, and what one side of lent memory
// has written is nowhere but there until it is mapped or unmapped; host memory that is not mapped is filled with
// garbage).
#ifndef HETEROCC_OPENCL_FAULT_H_
#define HETEROCC_OPENCL_FAULT_H_

#include "../common/common_faults.h"

namespace heterocc::opencl_plugin {

class Faults final : public CommonFaults {
 public:
  static Faults& Global();

  bool CopyFails() { return copy_.Happens(); }
  bool MigrateFails() { return migrate_.Happens(); }
  bool DeviceIsLost() { return lost_.Happens(); }
  bool MapMoves() { return move_.Happens(); }
  bool MapFails() { return map_.Happens(); }
  bool Foreign() const { return foreign_; }
  bool Integrated() const { return integrated_ || incoherent_; }
  bool Incoherent() const { return incoherent_; }

 private:
  Faults();

  Fault copy_;
  Fault migrate_;
  Fault map_;
  Fault move_;
  Fault lost_;
  bool foreign_ = false;
  bool integrated_ = false;
  bool incoherent_ = false;
};

}  // namespace heterocc::opencl_plugin

#endif  // HETEROCC_OPENCL_FAULT_H_
