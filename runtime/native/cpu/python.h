// The functions of Python's stable ABI and of numpy's C API that the plug-in calls. They are looked up in the process:
// the library belongs to no version of Python, and builds without its headers.
//
// Threading: the caller holds the interpreter's lock, except where a function says otherwise.
#ifndef HETEROCC_CPU_PYTHON_H_
#define HETEROCC_CPU_PYTHON_H_

#include <cstddef>
#include <cstdint>

namespace heterocc::cpu {

// The header of every object, of interpreters with a lock (PyObject).
struct Object {
  intptr_t references;
  void* type;
};

// What numpy keeps of an array (PyArrayObject_fields), up to its flags.
struct Array {
  Object head;
  char* data;
  int rank;
  intptr_t* extents;
  intptr_t* strides;
  Object* base;
  Object* dtype;
  int flags;
};

// Bits of an array's flags.
constexpr int kContiguous = 0x1, kAligned = 0x100, kWriteable = 0x400;

// PyMethodDef.
struct Method {
  const char* name;
  Object* (*function)(Object* self, Object* argument);
  int flags;
  const char* doc;
};
constexpr int kOneArgument = 0x8;

// The functions have the names of Python's and numpy's, whose documentation says what they own.
struct Python {
  void (*Py_IncRef)(Object*);
  void (*Py_DecRef)(Object*);
  Object* (*PyDict_New)();
  Object* (*PyDict_GetItemWithError)(Object*, Object*);
  intptr_t (*PyDict_Size)(Object*);
  int (*PyDict_SetItem)(Object*, Object*, Object*);
  Object* (*PyErr_Occurred)();
  void (*PyErr_Clear)();
  Object* (*PyCapsule_New)(void*, const char*, void (*)(Object*));
  void* (*PyCapsule_GetPointer)(Object*, const char*);
  Object* (*PyCFunction_NewEx)(Method*, Object*, Object*);
  void* (*PyEval_SaveThread)();
  void (*PyEval_RestoreThread)(void*);
  Object* none;
  void* dict_type;

  void* array_type;
  Object* (*PyArray_NewFromDescr)(void*, Object*, int, const intptr_t*, const intptr_t*, void*, int, Object*);
  int (*PyArray_SetBaseObject)(Object*, Object*);

  // Looks everything up; `arrays` is the table of numpy's C API. False if something is missing.
  bool Find(void** arrays);
};

}  // namespace heterocc::cpu

#endif  // HETEROCC_CPU_PYTHON_H_
