// The text of JSON that the plug-ins write. Threading: stateless.
//
// Every plug-in compiles this in a namespace of its own, HETEROCC_PLUGIN: two plug-ins that share a class are merged at
// load.
#ifndef HETEROCC_COMMON_JSON_H_
#define HETEROCC_COMMON_JSON_H_

#include <string>

namespace heterocc::HETEROCC_PLUGIN {

// The text as a JSON string, in ASCII.
std::string Quoted(const std::string& text);

}  // namespace heterocc::HETEROCC_PLUGIN

#endif  // HETEROCC_COMMON_JSON_H_
