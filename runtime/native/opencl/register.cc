// Registration of the functions of the OpenCL plug-in; those of all plug-ins are in `common/register.cc`.
#include "../common/register.h"

#include "lent.h"
#include "module.h"
#include "transfer.h"

namespace heterocc::opencl_plugin {

namespace ffi = tvm::ffi;

void RegisterOwn(ffi::reflection::GlobalDef* global) {
  global
      ->def("ffi.Module.load_from_bytes.opencl",
            [](const ffi::Bytes& bytes) { return ffi::Module(ffi::make_object<OpenCLModule>(bytes)); })
      .def("heterocc.opencl.linked", Linked)
      .def("heterocc.opencl.lends", Lends)
      .def("heterocc.opencl.lend", Lend)
      .def("heterocc.opencl.turn", Turn);
}

}  // namespace heterocc::opencl_plugin
