#include "json.h"

#include <cstdio>

namespace heterocc::HETEROCC_PLUGIN {

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (unsigned char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c < 0x20 || c >= 0x7f) {  // drivers may return text in other encodings: only ASCII is kept
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", c);
      out += escape;
    } else {
      out += static_cast<char>(c);
    }
  }
  return out + "\"";
}

JsonObject& JsonObject::Add(const char* key, const std::string& value) {
  members_ += (members_.empty() ? "\"" : ", \"") + std::string(key) + "\": " + value;
  return *this;
}

JsonObject& JsonObject::Texts(const char* key, const std::vector<std::string>& values) {
  std::string list;
  for (const std::string& value : values) list += (list.empty() ? "" : ", ") + Quoted(value);
  return Add(key, "[" + list + "]");
}

}  // namespace heterocc::HETEROCC_PLUGIN
