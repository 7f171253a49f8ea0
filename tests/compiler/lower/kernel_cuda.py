"""A program that runs the launches in a folder on the emulated CUDA driver."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import tvm_ffi

from heterocc.runtime.native import cuda_api


def main(folder: Path) -> None:
    cuda_api.cudart_candidates = lambda: iter([str(folder / "libcudart.so.13")])
    cuda_api.load_cuda()
    library = tvm_ffi.get_global_func("ffi.Module.load_from_file.so")(str(folder / "host.so"), "so")
    allocate = tvm_ffi.get_global_func("runtime.TVMTensorAllocWithScope")
    copy = tvm_ffi.get_global_func("runtime.TVMTensorCopyFromTo")
    device = tvm_ffi.device("cuda", 0)
    written = {}
    with np.load(folder / "given.npz") as given:
        names = sorted(given.files)
        for index, kernel in enumerate((folder / "names.txt").read_text().splitlines()):
            tensors = {}
            for name in (n for n in names if n.startswith(f"{index}/")):
                array = given[name]
                tensors[name] = allocate(tvm_ffi.Shape(array.shape), tvm_ffi.dtype(str(array.dtype)), device, None)
                copy(tvm_ffi.from_dlpack(np.array(array, order="C")), tensors[name])
            library.get_function(kernel)(*tensors.values())
            for name, tensor in tensors.items():
                if "/w" in name:
                    written[name] = np.empty(tuple(tensor.shape), str(tensor.dtype))
                    copy(tensor, tvm_ffi.from_dlpack(written[name]))
    np.savez(folder / "wrote.npz", **written)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
