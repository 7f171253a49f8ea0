// libFuzzer's target for runtime/native/cpu/request_data.h: it reads any text within its bounds, and writes within
// those of its results. The first byte chooses the element type, or the field of a message.
#include "cpu/request_data.h"

#include <cstddef>
#include <cstdint>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using heterocc::cpu::Element;
  if (size == 0) return 0;
  const auto element = static_cast<Element>(data[0] % 12);
  const std::vector<uint8_t> text(data + 1, data + size);  // in memory of its own, so that a read outside is seen
  const auto length = static_cast<int64_t>(text.size());
  const auto* characters = reinterpret_cast<const char*>(text.data());
  std::vector<heterocc::cpu::Span> spans(4);
  heterocc::cpu::CutJson(characters, length, spans.data(), 4);
  const int64_t room = element == Element::kText ? 2 * length : length / 2;
  std::vector<double> result(static_cast<size_t>(element == Element::kText ? length / 4 + 1 : room));
  heterocc::cpu::ReadJson(characters, length, {element, result.data(), room});
  for (int32_t field = 1; field <= 8; ++field) {
    heterocc::cpu::ReadContents(text.data(), length, field, {element, result.data(), room});
  }
  return 0;
}
