// The devices of this machine that a plug-in can use, by their TVM device index.
//
// Every plug-in compiles this in a separate namespace, HETEROCC_PLUGIN: two plug-ins that share a class are merged at
// load.
//
// Ownership: found once on first use, never freed. Threading: any thread.
#ifndef HETEROCC_COMMON_DEVICES_H_
#define HETEROCC_COMMON_DEVICES_H_

#include <string>
#include <vector>

namespace heterocc::HETEROCC_PLUGIN {

// The properties of a device; each plug-in defines this class and the three functions after it.
struct DeviceInfo;

// All usable devices; empty without one.
const std::vector<DeviceInfo>& AllDevices();

// The reason why `AllDevices` is empty; empty if it is not.
const std::string& WhyNoDevices();

// The properties that Python reads, as a JSON object.
std::string DeviceAsJson(const DeviceInfo& info);

// Device `index`; throws a `driver` error with the number of devices.
const DeviceInfo& RequireDevice(int index);

// `{"problem": text or null, "devices": [{…}]}`.
std::string DevicesAsJson();

}  // namespace heterocc::HETEROCC_PLUGIN

#endif  // HETEROCC_COMMON_DEVICES_H_
