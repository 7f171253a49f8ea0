// Simulated failures of OpenCL (HETEROCC_OPENCL_FAULT): those of `common/common_faults.h`, and `copy:N` (the Nth
// asynchronous copy fails, which is reported by the next wait), `migrate:N` (the Nth buffer on a device with separate
// memory cannot be allocated there), `map:N` (the Nth map of lent memory fails), `move:N` (the Nth, maps of new memory
// not counted, returns another address), `lost:N` (the Nth command loses the device).
//
// Read from the environment only: `foreign` (PoCL's platform has another name), `integrated` (a CPU is treated as an
// integrated GPU: it lends memory to the host and does not import any), `incoherent` (the same, and writes of one side
// to lent memory are visible to the other only after a map or unmap; host memory that is not mapped is filled with
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
