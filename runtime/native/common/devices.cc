// The plug-in's folder gives the headers whose names stand without one: every plug-in compiles this with its own.
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
