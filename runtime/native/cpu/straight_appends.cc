// The kernels of a program that append rows to an input, and whose results can lie in the input's memory.
#include <algorithm>

#include "straight_reader.h"

namespace heterocc::cpu {

void Reader::FindAppends() {
  for (const auto& [step, axis] : appending_) FindAppend(program_->steps[static_cast<size_t>(step)], axis);
}

void Reader::FindAppend(const Step& call, int64_t axis) {
  Program& program = *program_;
  if (call.count != 4) return;
  const TVMFFIAny& written = program.arguments[static_cast<size_t>(call.first + 3)];
  const auto slot = std::find_if(program.slots.begin(), program.slots.end(), [&](const Slot& s) {
    return written.type_index == kTVMFFITensor && written.v_obj == &s.head;
  });
  const auto use = std::find(program.uses.begin(), program.uses.end(), std::vector<int64_t>{call.first});
  if (slot == program.slots.end() || use == program.uses.end()) return;
  Append append{};
  append.axis = axis;
  append.input = use - program.uses.begin();
  append.slot = slot - program.slots.begin();
  const int64_t rank = program.input_ranks[static_cast<size_t>(append.input)];
  const int64_t from_input = append.input - program.inputs;
  const auto is_result = [&](const Result& r) { return r.kind == Result::kSlot && r.index == append.slot; };
  const auto result = std::find_if(program.results.begin(), program.results.end(), is_result);
  if (rank != slot->tensor.ndim || axis >= rank || result == program.results.end()) return;
  append.room = result->room;
  // The memory is that of this tensor alone, which only kernels read, as they do the input.
  int64_t placed = 0;
  for (const Step& step : program.steps) {
    if (step.kind == Step::kPlace && step.source == append.room) ++placed;
    if (step.kind == Step::kGive && step.index == append.room) return;
    if (step.kind == Step::kView && (step.source == append.slot || step.source == from_input)) return;
  }
  const auto shares = [&](const Result& r) { return r.kind == Result::kSlot && r.room == append.room; };
  if (placed != 1 || std::count_if(program.results.begin(), program.results.end(), shares) != 1) return;
  const DLDataType dtype = slot->tensor.dtype;
  const TVMFFIObject* const whole = &slot->head;
  append.past = static_cast<int64_t>(program.slots.size());
  Slot* const past = program.AddSlot(rank, dtype);
  Slot* const memory = program.AddSlot(rank, dtype);
  append.memory = append.past + 1;
  for (TVMFFIAny& argument : program.arguments) {
    if (argument.type_index == kTVMFFITensor && argument.v_obj == whole) argument.v_obj = &memory->head;
  }
  TVMFFIAny& given = program.arguments[static_cast<size_t>(call.first)];
  given.type_index = kTVMFFITensor;
  given.v_obj = &past->head;
  use->clear();
  program.rooms[static_cast<size_t>(append.room)].append = static_cast<int64_t>(program.appends.size());
  program.appends.push_back(append);
}

}  // namespace heterocc::cpu
