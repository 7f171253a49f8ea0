#include "driver.h"

#include <dlfcn.h>

#include "error.h"
#include "fault.h"

namespace heterocc::vulkan_plugin {
namespace {

constexpr char kLibrary[] = "libvulkan.so.1";

struct Opened {
  Driver driver;
  std::string problem;

  Opened() {
    if (Faults::Global().NoDriver()) {
      problem = std::string(kLibrary) + " cannot be opened: hidden by HETEROCC_VULKAN_FAULT";
      return;
    }
    void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* reason = dlerror();
      problem = std::string(kLibrary) + " cannot be opened: " + (reason != nullptr ? reason : "no reason given");
      return;
    }
    const auto get = reinterpret_cast<PFN_vkGetInstanceProcAddr>(dlsym(library, "vkGetInstanceProcAddr"));
    if (get == nullptr) {
      problem = std::string(kLibrary) + " is no Vulkan loader";
      return;
    }
    if (CreateInstance(get)) ResolveInstance(get);
  }

  bool CreateInstance(PFN_vkGetInstanceProcAddr get) {
    const auto version = reinterpret_cast<PFN_vkEnumerateInstanceVersion>(get(nullptr, "vkEnumerateInstanceVersion"));
    const auto create = reinterpret_cast<PFN_vkCreateInstance>(get(nullptr, "vkCreateInstance"));
    uint32_t offered = VK_API_VERSION_1_0;
    if (version == nullptr || create == nullptr || version(&offered) != VK_SUCCESS || offered < kApiVersion) {
      problem = std::string(kLibrary) + " is older than Vulkan 1.2";
      return false;
    }
    VkApplicationInfo application{};
    application.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO;
    application.pApplicationName = "heterocc";
    application.apiVersion = kApiVersion;
    VkInstanceCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO;
    info.pApplicationInfo = &application;
    const VkResult result = create(&info, nullptr, &driver.instance);
    if (result == VK_SUCCESS) return true;
    driver.instance = VK_NULL_HANDLE;
    problem = result == VK_ERROR_INCOMPATIBLE_DRIVER
                  ? std::string(kLibrary) + " is here, but no driver is installed behind it"
                  : "vkCreateInstance failed with " + Describe(result);
    return false;
  }

  void ResolveInstance(PFN_vkGetInstanceProcAddr get) {
#define HETEROCC_VK_RESOLVE(name)                                          \
  driver.name = reinterpret_cast<PFN_##name>(get(driver.instance, #name)); \
  if (driver.name == nullptr) problem = std::string(kLibrary) + " lacks " #name;
    HETEROCC_VK_INSTANCE_FUNCTIONS(HETEROCC_VK_RESOLVE)
#undef HETEROCC_VK_RESOLVE
  }
};

const Opened& Open() {
  static const Opened* opened = new Opened();  // never destroyed: tensors may be freed while the process exits
  return *opened;
}

}  // namespace

const Driver* FindDriver() {
  const Opened& opened = Open();
  return opened.problem.empty() ? &opened.driver : nullptr;
}

const std::string& WhyNoDriver() {
  return Open().problem;
}

const Driver& RequireDriver() {
  const Opened& opened = Open();
  if (!opened.problem.empty()) Throw(ErrorClass::kDriver, opened.problem);
  return opened.driver;
}

void Resolve(VkDevice device, DeviceFunctions* functions) {
  const PFN_vkGetDeviceProcAddr get = RequireDriver().vkGetDeviceProcAddr;
#define HETEROCC_VK_RESOLVE(name) functions->name = reinterpret_cast<PFN_##name>(get(device, #name));
#define HETEROCC_VK_REQUIRE(name) \
  HETEROCC_VK_RESOLVE(name)       \
  if (functions->name == nullptr) Throw(ErrorClass::kDriver, "the Vulkan driver lacks " #name);
  HETEROCC_VK_DEVICE_FUNCTIONS(HETEROCC_VK_REQUIRE)
  HETEROCC_VK_EXTENSION_FUNCTIONS(HETEROCC_VK_RESOLVE)
#undef HETEROCC_VK_REQUIRE
#undef HETEROCC_VK_RESOLVE
}

}  // namespace heterocc::vulkan_plugin
