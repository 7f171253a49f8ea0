// Straight-line code of a partition with sizes known only at run time, run without TVM's virtual machine.
//
// The machine looks up, copies and counts references of every argument of every instruction, of which a small network
// has more than a thousand: they take as long as its kernels. Here a function is translated once to steps in which the
// arguments of kernels are laid out; a run fills in addresses and sizes.
//
// Ownership: a program keeps the executable, the weights and the functions that it calls. Results own their memory.
// Threading: one run of a program at a time.
#ifndef HETEROCC_CPU_STRAIGHT_CODE_H_
#define HETEROCC_CPU_STRAIGHT_CODE_H_

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace heterocc::cpu {

// A size: a number, or the place of one in the table of sizes.
struct Size {
  bool computed;
  int64_t value;
};

// A tensor as kernels get it: the layout of tvm_ffi's tensor objects, whose references nobody counts.
struct Slot {
  TVMFFIObject head;
  DLTensor tensor;
  std::vector<int64_t> extents, strides;
};

// Memory of tensors, from the heap. That of results outlives the run.
struct Room {
  size_t element_bytes;
  void* data;
  size_t bytes;
  int64_t append = -1;  // the number of what appends the rows of an input, if a result is all that is here
};

// A part of the table of sizes: code that computes sizes stores aligned vectors of them.
struct alignas(64) Line {
  int64_t sizes[8];
};

// How a dimension is compared or kept.
struct Match {
  enum Kind : int64_t { kEqualsNumber = 0, kStore = 1, kAny = 2, kEqualsStored = 3 } kind;
  int64_t value;
};

struct Step {
  enum Kind { kMatch, kTake, kGive, kPlace, kView, kNumber, kCall } kind;
  int64_t index = 0;   // the room, slot, or function; of kNumber: the argument
  int64_t source = 0;  // of kPlace: the room; of kView: the slot, or input - number of inputs
  int64_t first = 0;   // of sizes, matches, or arguments
  int64_t count = 0;
  Size offset{false, 0};  // in bytes; of kNumber: the number
  bool has_fixed_shape = false;
};

// What is returned: an input, a weight, or a slot.
struct Result {
  enum Kind { kInput, kObject, kSlot } kind;
  int64_t index;
  int64_t room;
};

// A kernel `(past, new, count, result)` that appends rows to those of an input, or `(past, new, starts, count, sizes…,
// result)`, where each item's new rows begin at its start: in the input's memory only if all starts are its number of
// rows. All code that reads the result takes the size along the axis to be that of its memory, and the number of rows
// from elsewhere; so does the kernel, for which a past without rows is one in the result's memory. See
// compiler/lower/cpu/generate/append.py.
struct Append {
  int64_t axis;
  int64_t input;
  int64_t slot;  // of the result
  int64_t room;  // of the result, if this is not in the input's memory
  int64_t past;  // the slots of both memories, which are the arguments of kernels
  int64_t memory;
  int64_t starts;  // the slot of 64-bit numbers, or -1
};

struct Program {
  tvm::ffi::ObjectRef executable;
  int64_t inputs = 0;  // without the weights
  std::vector<DLDataType> input_types;
  std::vector<int64_t> input_ranks;
  std::vector<bool> are_shapes;  // inputs that are sizes, not tensors
  std::vector<Line> table;       // of sizes
  std::vector<Step> steps;
  std::vector<Size> sizes;
  std::vector<Match> matches;
  std::vector<TVMFFIAny> arguments;
  std::vector<std::vector<int64_t>> uses;  // by input: the arguments that are it
  std::vector<tvm::ffi::Function> functions;
  std::vector<std::string> names;  // of the functions
  std::vector<tvm::ffi::Any> objects;
  std::deque<Slot> slots;  // addresses stay
  std::vector<Room> rooms;
  std::vector<Result> results;
  std::vector<Append> appends;

  Slot* AddSlot(int64_t rank, DLDataType dtype);

  // A size in the table.
  int64_t& At(int64_t place) { return table[static_cast<size_t>(place / 8)].sizes[place % 8]; }
};

// The function `name` of an executable of TVM's virtual machine, whose last parameter is the tuple `weights`; nullptr
// if it has instructions that are not known here: branches, calls of other such functions, tensors of other devices.
// If it `appends`, rows are appended in place to inputs that are in a RowMemory; else kernels that append copy them.
std::unique_ptr<Program> Read(const tvm::ffi::Module& executable, const std::string& name,
                              const tvm::ffi::Array<tvm::ffi::Any>& weights, bool appends);

// Runs a program on its inputs, which are compact, or RowMemory holds them and rows are appended. False if their types
// or shapes are not what it takes. Throws what kernels throw, and std::bad_alloc; the memory of the run is given back.
// Results are added to a list.
bool Run(Program* program, const tvm::ffi::AnyView* inputs, std::vector<tvm::ffi::Any>* results);

}  // namespace heterocc::cpu

#endif  // HETEROCC_CPU_STRAIGHT_CODE_H_
