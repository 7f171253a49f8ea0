// What loading a plug-in makes known to TVM: the device, and the functions `heterocc.NAME.*` that all plug-ins have.
#ifndef HETEROCC_COMMON_REGISTER_H_
#define HETEROCC_COMMON_REGISTER_H_

#include <tvm/ffi/reflection/registry.h>

namespace heterocc::HETEROCC_PLUGIN {

// The module loader and the functions that only this plug-in has; called where the plug-in can be used. Each plug-in
// defines it.
void RegisterOwn(tvm::ffi::reflection::GlobalDef* global);

}  // namespace heterocc::HETEROCC_PLUGIN

#endif  // HETEROCC_COMMON_REGISTER_H_
