// Headers named without a folder are the plug-in's own: every plug-in compiles this file with its folder.
#include "devices.h"

#include "error.h"
#include "json.h"
#include "platform.h"

namespace heterocc::HETEROCC_PLUGIN {

const DeviceInfo& RequireDevice(int index) {
  const std::vector<DeviceInfo>& devices = AllDevices();
  if (devices.empty()) Throw(ErrorClass::kDriver, WhyNoDevices());
  if (index < 0 || static_cast<size_t>(index) >= devices.size()) {
    Throw(ErrorClass::kDriver, "there is no " HETEROCC_LABEL " device " + std::to_string(index) +
                                   ": this machine has " + std::to_string(devices.size()));
  }
  return devices[index];
}

std::string DevicesAsJson() {
  const std::string& problem = WhyNoDevices();
  std::string text = "{\"problem\": " + (problem.empty() ? "null" : Quoted(problem)) + ", \"devices\": [";
  const char* separator = "";
  for (const DeviceInfo& info : AllDevices()) {
    text += separator + DeviceAsJson(info);
    separator = ", ";
  }
  return text + "]}";
}

}  // namespace heterocc::HETEROCC_PLUGIN
