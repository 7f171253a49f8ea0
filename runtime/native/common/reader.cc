#include "reader.h"

#include "error.h"

namespace heterocc::HETEROCC_PLUGIN {

template <typename Length>
void Reader<Length>::Damaged(const std::string& how) const {
  Throw(ErrorClass::kModule, std::string(what_) + " is damaged: " + how);
}

template <typename Length>
void Reader<Length>::CutShort() const {
  Throw(ErrorClass::kModule, std::string(what_) + " is cut short");
}

template <typename Length>
void Reader<Length>::Header(const std::string& magic, uint32_t version) {
  std::string found(magic.size(), '\0');
  Copy(found.data(), found.size());
  if (found != magic) Throw(ErrorClass::kModule, std::string(what_) + " does not begin with '" + magic + "'");
  const auto other = Number<uint32_t>();
  if (other != version) {
    Throw(ErrorClass::kModule, std::string(what_) + " is of version " + std::to_string(other) +
                                   ", and this heterocc reads " + std::to_string(version));
  }
}

template class Reader<uint32_t>;
template class Reader<uint64_t>;

}  // namespace heterocc::HETEROCC_PLUGIN
