// What only the OpenCL plug-in makes known to TVM; `common/register.cc` has the rest.
#include "../common/register.h"

#include <tvm/ffi/container/array.h>

#include "lent.h"
#include "module.h"
#include "transfer.h"

namespace heterocc::opencl_plugin {

namespace ffi = tvm::ffi;

namespace {

ffi::Array<int64_t> Statistics(int64_t device) {
  ffi::Array<int64_t> result;
  for (const uint64_t number : Queue::Of(static_cast<int>(device))->Statistics()) {
    result.push_back(static_cast<int64_t>(number));
  }
  return result;
}

}  // namespace

void RegisterOwn(ffi::reflection::GlobalDef* global) {
  global
      ->def("ffi.Module.load_from_bytes.opencl",
            [](const ffi::Bytes& bytes) { return ffi::Module(ffi::make_object<OpenCLModule>(bytes)); })
      .def("heterocc.opencl.linked", Linked)
      .def("heterocc.opencl.lends", Lends)
      .def("heterocc.opencl.lend", Lend)
      .def("heterocc.opencl.turn", Turn)
      .def("heterocc.opencl.statistics", Statistics);
}

}  // namespace heterocc::opencl_plugin
