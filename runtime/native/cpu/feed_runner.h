// What functions from a dictionary of arrays to a dictionary of arrays share: fast_path.h has those for fixed sizes,
// fast_sizes.h those for sizes of the run.
//
// Ownership: the function that is made of a runner owns it. Values hold their names and dtypes.
//
// Threading: with the interpreter's lock held. One run of a runner at a time.
#ifndef HETEROCC_CPU_FEED_RUNNER_H_
#define HETEROCC_CPU_FEED_RUNNER_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "python.h"

namespace heterocc::cpu {

// The interpreter of this process, for functions that free what a capsule holds.
inline const Python* interpreter = nullptr;

// A base of `Runner`, which has `kName`, the name of capsules with it, and:
//   bool Take(Object* feed)   takes the inputs; false if they are not exactly its own
//   Object* Results()         runs the code on them: a dictionary, or nullptr, maybe with an exception
//   void Clean()              holds no arrays any more, after either
template <typename Runner>
struct FeedRunner {
  const Python* python;
  bool busy = false;

  explicit FeedRunner(const Python* found) : python(found) { interpreter = found; }

  // A function of one argument, or nullptr with an exception. It returns None, as if it had not been called, for any
  // argument with which the runner has no results: a run in Python then says why.
  static Object* NewFunction(std::unique_ptr<Runner> runner) {
    const Python& python = *runner->python;
    Object* const capsule = python.PyCapsule_New(runner.get(), Runner::kName, Free);
    if (capsule == nullptr) return nullptr;
    runner.release();
    static Method method{"run", Run, kOneArgument,
                         "Run a context on a dictionary of arrays; None if Python must do it."};
    Object* const function = python.PyCFunction_NewEx(&method, capsule, nullptr);
    python.Py_DecRef(capsule);
    return function;
  }

 private:
  static Runner* Of(Object* capsule) {
    return static_cast<Runner*>(interpreter->PyCapsule_GetPointer(capsule, Runner::kName));
  }

  static void Free(Object* capsule) { delete Of(capsule); }

  static Object* Run(Object* self, Object* feed) {
    const Python& python = *interpreter;
    Runner* const runner = Of(self);
    Object* found = nullptr;
    if (!runner->busy) {
      runner->busy = true;
      if (runner->Take(feed)) found = runner->Results();
      runner->Clean();
      runner->busy = false;
    }
    if (found != nullptr) return found;
    if (python.PyErr_Occurred() != nullptr) python.PyErr_Clear();
    python.Py_IncRef(python.none);
    return python.none;
  }
};

template <typename Value>
void HoldNames(const Python& python, const Value& value) {
  python.Py_IncRef(value.name);
  python.Py_IncRef(value.dtype);
}

template <typename Value>
void DropNames(const Python& python, const Value& value) {
  python.Py_DecRef(value.name);
  python.Py_DecRef(value.dtype);
}

// Sets `given` of each input to its array in a dictionary, with a reference. False if the dictionary has not exactly
// these, or one does not fit.
template <typename Input, typename Fits>
bool TakeArrays(const Python& python, Object* feed, std::vector<Input>* inputs, Fits fits) {
  if (feed->type != python.dict_type || python.PyDict_Size(feed) != static_cast<intptr_t>(inputs->size())) return false;
  for (Input& input : *inputs) {
    Object* const found = python.PyDict_GetItemWithError(feed, input.value.name);
    if (found == nullptr || !fits(&input, found)) return false;
    python.Py_IncRef(found);
    input.given = found;
  }
  return true;
}

// A writeable array over memory that `capsule` keeps, of which it takes the reference. nullptr with an exception.
// `strides` are in bytes, and nullptr for a contiguous one.
inline Object* ArrayOver(const Python& python, Object* dtype, const std::vector<intptr_t>& extents,
                         const intptr_t* strides, void* data, Object* capsule) {
  python.Py_IncRef(dtype);  // the array takes it
  const int flags = (strides == nullptr ? kContiguous : 0) | kAligned | kWriteable;
  Object* const array = python.PyArray_NewFromDescr(python.array_type, dtype, static_cast<int>(extents.size()),
                                                    extents.data(), strides, data, flags, nullptr);
  if (array == nullptr) {
    python.Py_DecRef(capsule);
    return nullptr;
  }
  if (python.PyArray_SetBaseObject(array, capsule) != 0) {  // takes the capsule, also if it fails
    python.Py_DecRef(array);
    return nullptr;
  }
  return array;
}

// A dictionary of an array for each output, with the reference that `array_of(output)` gives. nullptr, maybe with an
// exception, if one is missing.
template <typename Output, typename ArrayOf>
Object* NewDictionary(const Python& python, std::vector<Output>* outputs, ArrayOf array_of) {
  Object* const found = python.PyDict_New();
  if (found == nullptr) return nullptr;
  for (Output& output : *outputs) {
    Object* const array = array_of(&output);
    const bool failed = array == nullptr || python.PyDict_SetItem(found, output.value.name, array) != 0;
    if (array != nullptr) python.Py_DecRef(array);
    if (failed) {
      python.Py_DecRef(found);
      return nullptr;
    }
  }
  return found;
}

}  // namespace heterocc::cpu

#endif  // HETEROCC_CPU_FEED_RUNNER_H_
