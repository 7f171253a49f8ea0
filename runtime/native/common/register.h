// Registration with TVM when a plug-in is loaded: the device, and the functions `heterocc.NAME.*` of all plug-ins.
#ifndef HETEROCC_COMMON_REGISTER_H_
#define HETEROCC_COMMON_REGISTER_H_

#include <tvm/ffi/reflection/registry.h>

namespace heterocc::HETEROCC_PLUGIN {

// Registers the module loader and the functions that only this plug-in has; called if the plug-in can be used. Each
// plug-in defines it.
void RegisterOwn(tvm::ffi::reflection::GlobalDef* global);

}  // namespace heterocc::HETEROCC_PLUGIN

#endif  // HETEROCC_COMMON_REGISTER_H_
