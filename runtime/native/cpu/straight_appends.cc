// The kernels of a program that append rows to an input, and whose results can lie in the input's memory.
#include <algorithm>

#include "straight_reader.h"

namespace heterocc::cpu {

void Reader::FindAppends() {
  for (const auto& [step, axis] : appending_) FindAppend(program_->steps[static_cast<size_t>(step)], axis);
}

void Reader::FindAppend(const Step& call, int64_t axis) {
  Program& program = *program_;
  if (call.count < 4) return;
  const auto slot_of = [&](int64_t argument) {
    const TVMFFIAny& given = program.arguments[static_cast<size_t>(call.first + argument)];
    return std::find_if(program.slots.begin(), program.slots.end(),
                        [&](const Slot& s) { return given.type_index == kTVMFFITensor && given.v_obj == &s.head; });
  };
  const auto slot = slot_of(call.count - 1);
  const auto use = std::find(program.uses.begin(), program.uses.end(), std::vector<int64_t>{call.first});
  if (slot == program.slots.end() || use == program.uses.end()) return;
  Append append{};
  append.axis = axis;
  append.input = use - program.uses.begin();
  append.slot = slot - program.slots.begin();
  append.starts = -1;
  if (call.count > 4) {
    const auto starts = slot_of(2);
    if (starts == program.slots.end() || starts->tensor.dtype.code != kDLInt || starts->tensor.dtype.bits != 64) return;
    append.starts = starts - program.slots.begin();
  }
  const int64_t rank = program.input_ranks[static_cast<size_t>(append.input)];
  const int64_t from_input = append.input - program.inputs;
  const auto is_result = [&](const Result& r) { return r.kind == Result::kSlot && r.index == append.slot; };
  const auto result = std::find_if(program.results.begin(), program.results.end(), is_result);
  if (rank != slot->tensor.ndim || axis >= rank || result == program.results.end()) return;
  append.room = result->room;
  // The memory is that of this tensor alone, which only kernels read, as they do the input. It is taken right before
  // the kernel, when starts are known.
  int64_t placed = 0;
  bool is_known = true;
  for (const Step& step : program.steps) {
    if (step.kind == Step::kPlace && step.source == append.room) {
      ++placed;
      const auto is_call = [](const Step& s) { return s.kind == Step::kCall; };
      is_known = append.starts < 0 || &*std::find_if(&step, &call, is_call) == &call;
    }
    if (step.kind == Step::kGive && step.index == append.room) return;
    if (step.kind == Step::kView && (step.source == append.slot || step.source == from_input)) return;
  }
  const auto shares = [&](const Result& r) { return r.kind == Result::kSlot && r.room == append.room; };
  if (placed != 1 || !is_known || std::count_if(program.results.begin(), program.results.end(), shares) != 1) return;
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
