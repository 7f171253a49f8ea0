// The text of JSON that the plug-ins write. Threading: stateless.
//
// Every plug-in compiles this in a separate namespace, HETEROCC_PLUGIN: two plug-ins that share a class are merged at
// load.
#ifndef HETEROCC_COMMON_JSON_H_
#define HETEROCC_COMMON_JSON_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace heterocc::HETEROCC_PLUGIN {

// The text as a JSON string, in ASCII.
std::string Quoted(const std::string& text);

// A JSON object, its members in the order in which they are added.
class JsonObject {
 public:
  JsonObject& Text(const char* key, const std::string& value) { return Add(key, Quoted(value)); }
  JsonObject& Number(const char* key, uint64_t value) { return Add(key, std::to_string(value)); }
  JsonObject& Flag(const char* key, bool value) { return Add(key, value ? "true" : "false"); }
  JsonObject& Texts(const char* key, const std::vector<std::string>& values);

  // Three numbers, as for x, y and z.
  template <typename T>
  JsonObject& Triple(const char* key, const T* values) {
    return Add(key, "[" + std::to_string(values[0]) + ", " + std::to_string(values[1]) + ", " +
                        std::to_string(values[2]) + "]");
  }

  std::string Close() const { return "{" + members_ + "}"; }

 private:
  JsonObject& Add(const char* key, const std::string& value);

  std::string members_;
};

}  // namespace heterocc::HETEROCC_PLUGIN

#endif  // HETEROCC_COMMON_JSON_H_
