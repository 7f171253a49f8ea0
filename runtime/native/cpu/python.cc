#include "python.h"

#include <dlfcn.h>

namespace heterocc::cpu {
namespace {

// Places in the table of numpy's C API, the same in all versions since 1.7.
constexpr size_t kArrayType = 2, kNewFromDescr = 94, kSetBaseObject = 282;

template <typename Pointer>
bool Look(Pointer* found, const char* name) {
  *found = reinterpret_cast<Pointer>(dlsym(RTLD_DEFAULT, name));
  return *found != nullptr;
}

}  // namespace

bool Python::Find(void** arrays) {
  array_type = arrays[kArrayType];
  PyArray_NewFromDescr = reinterpret_cast<decltype(PyArray_NewFromDescr)>(arrays[kNewFromDescr]);
  PyArray_SetBaseObject = reinterpret_cast<decltype(PyArray_SetBaseObject)>(arrays[kSetBaseObject]);
#define HETEROCC_LOOK(name) Look(&name, #name)
  return HETEROCC_LOOK(Py_IncRef) && HETEROCC_LOOK(Py_DecRef) && HETEROCC_LOOK(PyDict_New) &&
         HETEROCC_LOOK(PyDict_GetItemWithError) && HETEROCC_LOOK(PyDict_Size) && HETEROCC_LOOK(PyDict_SetItem) &&
         HETEROCC_LOOK(PyErr_Occurred) && HETEROCC_LOOK(PyErr_Clear) && HETEROCC_LOOK(PyCapsule_New) &&
         HETEROCC_LOOK(PyCapsule_GetPointer) && HETEROCC_LOOK(PyCFunction_NewEx) && HETEROCC_LOOK(PyEval_SaveThread) &&
         HETEROCC_LOOK(PyEval_RestoreThread) && Look(&none, "_Py_NoneStruct") && Look(&dict_type, "PyDict_Type");
#undef HETEROCC_LOOK
}

}  // namespace heterocc::cpu
