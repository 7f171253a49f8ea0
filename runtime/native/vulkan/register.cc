// Registration of the functions of the Vulkan plug-in; those of all plug-ins are in `common/register.cc`.
#include "../common/register.h"

#include "device_api.h"
#include "module.h"

namespace heterocc::vulkan_plugin {
namespace {

namespace ffi = tvm::ffi;

ffi::Module CreateModule(const ffi::Bytes& bytes) {
  return ffi::Module(ffi::make_object<VulkanModule>(bytes));
}

}  // namespace

void RegisterOwn(ffi::reflection::GlobalDef* global) {
  global
      ->def("device_api.vulkan.get_target_property",
            [](DLDevice device, const ffi::String& property) {
              ffi::Any result;
              VulkanDeviceAPI::Global()->GetTargetProperty(device, std::string(property), &result);
              return result;
            })
      .def("ffi.Module.load_from_bytes.vulkan", CreateModule)
      .def("heterocc.vulkan.create_module", CreateModule)
      .def("heterocc.vulkan.lends",
           [](int64_t device) { return RequireDevice(static_cast<int>(device)).LendsMemory(); });
}

}  // namespace heterocc::vulkan_plugin
