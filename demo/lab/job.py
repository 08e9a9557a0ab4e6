"""A CUDA program without a framework: it allocates a share of each visible GPU's memory and holds it for some seconds.

python job.py [SHARE [SECONDS]]
"""

import ctypes
import sys
import time
from uuid import UUID

share = float(sys.argv[1]) if len(sys.argv) > 1 else 0.1
seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 60.0
cuda = ctypes.CDLL("libcuda.so.1")
count, device, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
total, memory, uuid = ctypes.c_size_t(), ctypes.c_uint64(), (ctypes.c_ubyte * 16)()
if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
    sys.exit("no GPU")
uuids = []
for ordinal in range(count.value):
    cuda.cuDeviceGet(ctypes.byref(device), ordinal)
    cuda.cuDeviceGetUuid_v2(uuid, device)
    uuids.append(str(UUID(bytes=bytes(uuid))))
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    cuda.cuCtxSetCurrent(context)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(round(share * total.value)))
print("on", *uuids, flush=True)
time.sleep(seconds)
