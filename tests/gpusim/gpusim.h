/* The simulated GPU server: one shared object that stands in for the NVIDIA driver, NVML and the CUDA
   libraries, so that unmodified programs find the GPUs that a fleet file describes.

   What is simulated
   - The machine: N GPUs with name, UUID, PCI address, memory and compute capability, and the load and the
     processes of other users. The fleet file is read again when it changes.
   - Memory. The contexts and allocations of all processes are kept in one ledger. So NVML in one process
     reports the memory of another, nobody gets more memory than a GPU has, and memory is free again after a
     process has ended, even by a crash.
   - CUDA in a process. Nothing works before cuInit, which reads CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER
     once. A forked child of an initialised process can't use CUDA.
   - Device files, if the fleet has a folder for them. A process is denied a GPU whose file it can't open, as
     in a container or in a job with a device cgroup.
   - Cards in MIG mode. Their instances are devices, and CUDA lists them as older and newer drivers do.
   - Compute modes, and faults on request: NVML fails, hangs or crashes; a GPU is lost, forbidden or hangs;
     a GPU lacks readings; process lists are empty.
   - Connections between the GPUs: NVLinks, NVSwitch, PCI Express.
   - A log of the driver's calls.

   What is not simulated
   - Arithmetic. Kernels are accepted and never run; only copies and fills are really done. Every number that a
     program computes is garbage: never assert on a loss.
   - Time. All work is complete when its call returns.
   - MPS, ECC, virtual GPUs, several compute instances in one GPU instance, and pids of other namespaces. NVML
     returns NOT_SUPPORTED for them, as for a GPU without them.
   - Transfers over NVLink or PCI Express. Only the list of connections is simulated.

   What tests on this server can't prove
   The real driver parses CUDA_VISIBLE_DEVICES; here we parse it as we understand NVIDIA's documentation. So tests
   can't prove the parsing rules, the device order, the size of a context, timing, or the behaviour of shared
   GPUs. Each such rule has its source in a comment.

   Files
     fleet.c           the description of the machine      driver_copy.c     copies and fills
     ledger.c          memory of each process and GPU      driver_stream.c   streams, events, callbacks
     log.c             the log of driver calls             driver_module.c   modules, kernels
     process.c         the lock, fork, hanging             driver_entry.c    functions without cuInit
     visible.c         the GPUs a process may see          runtime.c         the runtime API over the driver's
     driver_device.c   cuInit, devices                     nvml.c            NVML: the library and the machine
     driver_context.c  contexts                            nvml_device.c     NVML: one GPU
     driver_memory.c   allocations                         nvml_process.c    NVML: processes and samples
     driver_pool.c     memory pools, reserved addresses    mathlib.c         cuBLAS, cuDNN and the like
     driver_share.c    memory shared between processes     cufft.c, nccl.c,  the libraries of these names
     driver_graph.c    graphs                              nvrtc.c
     runtime_memory.c  memory, streams, events             cudnn_layers.c    cuDNN's layers
     runtime_graph.c   capture and graphs                  cudnn_recurrent.c cuDNN's LSTM and GRU
     device_files.c    GPUs denied to a process            missing.c         functions not simulated
     nvml_mig.c        NVML: the instances of a card       mig.c             names of instances
     nvml_topology.c   NVML: connections of GPUs
     release/          libraries with a version            preload/          files in /dev

   Prototypes are written by hand from NVIDIA's public API references. */
#ifndef GPUSIM_H
#define GPUSIM_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))

/* The same function under its name in an older header. */
#define ALIAS(old_name, new_name) extern API __typeof(new_name) old_name __attribute__((alias(#new_name)))

/* ---- fleet.c ---- */

#define MAX_GPUS 128 /* 64 cards and 64 instances; the driver allows no more instances */
#define MAX_OTHERS 64 /* processes of other users on one GPU */
#define MAX_SAMPLES 64
#define MAX_LINKS 18
#define MAX_STEPS 5 /* steps on the way from the machine to a GPU */
#define MAX_PATH 1024

/* A process and its memory on one GPU. */
typedef struct Gpu Gpu;
typedef struct {
  uint32_t pid;
  uint64_t bytes;
  const Gpu *instance; /* MIG instance; NULL for a whole card */
} Holding;

typedef struct {
  int count;
  Holding holding[MAX_OTHERS];
} Holdings;

/* Readings of a GPU, as in a fleet's `unsupported`. */
typedef enum {
  READING_ANY = 0,
  READING_NAME = 1 << 0,
  READING_UUID = 1 << 1,
  READING_PCI = 1 << 2,
  READING_MEMORY = 1 << 3,
  READING_UTILIZATION = 1 << 4,
  READING_SAMPLES = 1 << 5,
  READING_PROCESSES = 1 << 6,
  READING_GRAPHICS_PROCESSES = 1 << 7,
  READING_PROCESS_MEMORY = 1 << 8,
  READING_COMPUTE_MODE = 1 << 9,
  READING_TEMPERATURE = 1 << 10,
  READING_POWER = 1 << 11,
  READING_P2P = 1 << 12,
  READING_TOPOLOGY = 1 << 13,
  READING_OF_CARD = 1 << 14, /* any reading that MIG instances lack; not for a fleet */
} Reading;

typedef enum {
  ROW_REMAPPING_PENDING = 1,
  ROW_REMAPPING_FAILED = 1 << 1,
  PAGE_RETIREMENT_PENDING = 1 << 2,
} Sickness;

/* A fault is 0 for none, an error code to return, or one of these. */
enum { FAULT_HANG = -1, FAULT_CRASH = -2 };

/* The numbers are equal in CUDA and NVML. */
enum { MODE_DEFAULT = 0, MODE_PROHIBITED = 2, MODE_EXCLUSIVE_PROCESS = 3 };

typedef struct {
  unsigned domain, bus, device;
} PciAddress;

struct Gpu {
  char name[96];
  char uuid[64];
  uint8_t uuid_bytes[16];
  PciAddress pci;
  int link_count;
  PciAddress links[MAX_LINKS]; /* the other end: a GPU, else a switch; 0 for an unused link */
  int path_length;
  unsigned path[MAX_STEPS]; /* NUMA node, host bridge, first switch, last switch, board */
  uint64_t memory_bytes;
  uint64_t used_bytes; /* held by no listed process */
  Holdings compute, graphics;
  int sample_count;
  unsigned samples[MAX_SAMPLES]; /* utilization in percent; the last one is now */
  int major, minor, multiprocessors;
  int speed; /* rank for FASTEST_FIRST; 0: from major, minor, multiprocessors */
  int compute_mode;
  int nvml_fault;
  bool hide_processes;
  unsigned unsupported; /* set of Reading */
  bool has_ecc;
  uint64_t uncorrected_errors;
  unsigned health; /* set of Sickness */
  bool can_mig, in_mig_mode;
  bool is_instance; /* the fields below are for instances only */
  int card;         /* index of the card in the fleet */
  int mig_index;    /* index on the card; numbers may be missing */
  unsigned gpu_instance, compute_instance;
};

typedef struct {
  char driver[32];
  int cuda_version;       /* of the driver, such as 12040; libraries have their own version */
  uint64_t context_bytes; /* memory of a context */
  int nvml_fault, cuda_fault;
  char device_files[MAX_PATH]; /* "": no process is denied a GPU */
  bool omits_denied;           /* NVML does not list a denied GPU; else it returns NO_PERMISSION */
  int gpu_count;     /* number of cards; they come first, in PCI order, which is NVML's order */
  int device_count;  /* number of cards and instances; instances follow the cards */
  Gpu gpu[MAX_GPUS];
} Fleet;

/* Return the fleet as in its file now. A snapshot is valid until the process ends. */
const Fleet *fleet_now(void);
unsigned gpu_utilization(const Gpu *gpu);

/* ---- device_files.c ---- */

/* True if this process can't open the GPU's device file now; for an instance, its own file or that of its card. */
bool device_file_is_denied(const Fleet *fleet, int gpu);
/* True if this process must not read a card in MIG mode as a whole. */
bool monitor_file_is_denied(const Fleet *fleet);

/* ---- mig.c ---- */

/* Return 550 for driver "550.54.15". */
int driver_branch(const Fleet *fleet);
/* Return the NVML fault of a GPU. An instance has the fault of its card too. */
int fault_of(const Fleet *fleet, const Gpu *gpu);
bool is_name_of_instance(const Fleet *fleet, int gpu, const char *text, size_t length);
/* List the instances of a card that this process may open, as numbers in the fleet. */
int instances_of(const Fleet *fleet, int card, int list[MAX_GPUS]);

/* ---- ledger.c: GPUs are numbered as in the fleet ---- */

typedef enum { GRANTED, NO_ROOM, NOT_FOR_YOU } Grant;

Grant ledger_open_context(int gpu, uint64_t bytes);
void ledger_close_context(int gpu, uint64_t bytes);
Grant ledger_take(int gpu, uint64_t bytes);
void ledger_give_back(int gpu, uint64_t bytes);
uint64_t ledger_used_bytes(int gpu);
int ledger_processes(int gpu, Holding *list, int capacity);
void ledger_forget_after_fork(void);

/* ---- log.c ---- */

/* `gpu` is -1 for a call that concerns no GPU. */
void log_call(const char *call, int gpu, uint64_t bytes);

/* ---- process.c ---- */

/* One recursive lock for all state of this process, so that a fork needs to hold only one. */
void process_lock(void);
void process_unlock(void);
/* True if this process was forked, without an exec, from a process in which CUDA was initialised. */
bool process_is_forked_from_cuda(void);
void process_has_cuda(void);
/* Hang or crash if the fault requires it. Return any other fault, which the caller returns to the program. */
int suffer(int fault);
/* Return a path from the environment, as it was at the first call. */
typedef enum { PATH_FLEET, PATH_STATE, PATH_LOG } Path;
const char *process_path(Path path);
_Noreturn void give_up(const char *what, const char *path);

/* ---- visible.c ---- */

/* Fill the list with the GPUs of the fleet that this process may see, in CUDA's order, and return their number. */
int visible_devices(const Fleet *fleet, const char *visible, const char *order, int list[MAX_GPUS]);

/* ---- the driver API ---- */

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;

enum {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_NOT_SUPPORTED = 801,
  CUDA_ERROR_UNKNOWN = 999,
};

typedef struct Context {
  CUdevice device;
  unsigned flags;
  int references;
  uint64_t charged_bytes;
  bool is_open;
} Context;

/* Wait for the queued host callbacks, because they may fill the memory that a copy reads. Wait only for a moment: a
   callback may itself wait for an action of the program after the copy. */
void callbacks_settle(void);

typedef struct Stream {
  Context *context;
  unsigned flags;
  int priority;
  void *captured_graph;
} Stream;

typedef struct Event Event;

/* Every driver call begins with this, except calls for versions and error texts. */
bool driver_is_ready(void);
#define NEEDS_INIT                       \
  do {                                   \
    if (!driver_is_ready())              \
      return CUDA_ERROR_NOT_INITIALIZED; \
  } while (0)
#define NEEDS_DEVICE(device)            \
  do {                                  \
    NEEDS_INIT;                         \
    if (!is_device(device))             \
      return CUDA_ERROR_INVALID_DEVICE; \
  } while (0)

/* A driver call without a visible effect in the simulation. */
#define ACCEPT(function, ...)          \
  API CUresult function(__VA_ARGS__) { \
    NEEDS_INIT;                        \
    return CUDA_SUCCESS;               \
  }

bool is_device(CUdevice device);
int device_count(void);
int physical_gpu(CUdevice device);
const Gpu *gpu_of(CUdevice device);
Context *current_context(void);
Context *primary_context(CUdevice device);

typedef enum { BLOCK_DEVICE, BLOCK_HOST, BLOCK_MAPPED } BlockKind;

typedef struct Block {
  struct Block *next;
  uint64_t address, bytes;
  int gpu; /* -1 for host memory */
  BlockKind kind;
} Block;

CUresult device_allocate(CUdeviceptr *address, size_t bytes, CUdevice device);
CUresult host_allocate(void **address, size_t bytes);
CUresult memory_free(uint64_t address);
void remember_block(uint64_t address, uint64_t bytes, int gpu, BlockKind kind);
bool forget_block(uint64_t address, Block *forgotten);
bool find_block(uint64_t address, Block *found);

/* Return an object that has only an identity: a module, a function, a graph. */
void *new_handle(const char *name);

CUresult cuInit(unsigned flags);
CUresult cuDriverGetVersion(int *version);
CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);
CUresult cuGetErrorName(CUresult error, const char **name);
CUresult cuGetErrorString(CUresult error, const char **text);
CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device);
CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer);
CUresult cuDeviceGetPCIBusId(char *text, int size, CUdevice device);
CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *text);
CUresult cuDeviceGetDefaultMemPool(void *pool, CUdevice device);
CUresult cuDevicePrimaryCtxRetain(Context **context, CUdevice device);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);
CUresult cuCtxSetCurrent(Context *context);
CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest);
CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
CUresult cuMemPoolGetAttribute(void *pool, int attribute, void *value);
CUresult cuMemPoolSetAttribute(void *pool, int attribute, void *value);
CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUresult cuMemsetD8_v2(CUdeviceptr at, unsigned char value, size_t count);
CUresult cuStreamCreateWithPriority(Stream **stream, unsigned flags, int priority);
CUresult cuStreamDestroy_v2(Stream *stream);
CUresult cuStreamGetPriority(Stream *stream, int *priority);
CUresult cuStreamAddCallback(Stream *stream, void (*function)(Stream *, CUresult, void *), void *data,
                             unsigned flags);
CUresult cuStreamBeginCapture_v2(Stream *stream, int mode);
CUresult cuStreamEndCapture(Stream *stream, void **graph);
CUresult cuLaunchHostFunc(Stream *stream, void (*function)(void *), void *data);
CUresult cuEventCreate(Event **event, unsigned flags);
CUresult cuEventRecord(Event *event, Stream *stream);
CUresult cuEventDestroy_v2(Event *event);
CUresult cuEventElapsedTime(float *milliseconds, Event *start, Event *end);

/* ---- the runtime API ---- */

typedef int cudaError; /* an error of both APIs has the same number in both */

/* Keep an error for cudaGetLastError, and return it. */
cudaError remember_error(cudaError error);
cudaError use_current_device(void);
#define NEEDS_CURRENT_DEVICE                 \
  do {                                       \
    cudaError error_ = use_current_device(); \
    if (error_)                              \
      return error_;                         \
  } while (0)

/* A runtime call without an effect. Like the real one, it works before a device is used. */
#define ACCEPT_ALWAYS(function, ...)    \
  API cudaError function(__VA_ARGS__) { \
    return CUDA_SUCCESS;                \
  }

/* ---- NVML ---- */

typedef int nvmlReturn;
typedef uintptr_t nvmlDevice; /* index of a card or an instance in the fleet, plus 1 */

enum {
  NVML_SUCCESS = 0,
  NVML_ERROR_UNINITIALIZED = 1,
  NVML_ERROR_INVALID_ARGUMENT = 2,
  NVML_ERROR_NOT_SUPPORTED = 3,
  NVML_ERROR_NO_PERMISSION = 4,
  NVML_ERROR_NOT_FOUND = 6,
  NVML_ERROR_INSUFFICIENT_SIZE = 7,
  NVML_ERROR_DRIVER_NOT_LOADED = 9,
  NVML_ERROR_FUNCTION_NOT_FOUND = 13,
  NVML_ERROR_DEPRECATED = 26,
};

typedef struct {
  char legacy_id[16];
  unsigned domain, bus, device, vendor_and_device, subsystem;
  char id[32];
} PciInfo;

void nvml_describe_pci(PciAddress address, PciInfo *info);
bool nvml_is_ready(void);
/* Return NVML's index of a GPU of the fleet. */
unsigned nvml_index(const Fleet *fleet, int gpu);
/* Return NVML's index of an instance on its card. */
unsigned nvml_mig_index(const Fleet *fleet, int gpu);
nvmlReturn nvml_copy_text(char *to, unsigned size, const char *text);
/* Find the GPU for a reading. Fail or hang as the GPU's fault requires, and fail if the GPU lacks the reading. */
nvmlReturn nvml_find(nvmlDevice device, Reading reading, const Gpu **gpu);
/* Return the handle of a card or an instance, unless it has a fault or is denied. */
nvmlReturn nvml_hand_over(int index_in_fleet, nvmlDevice *device);
#define NEEDS_GPU(device, reading)                        \
  const Gpu *gpu;                                         \
  do {                                                    \
    nvmlReturn error_ = nvml_find(device, reading, &gpu); \
    if (error_)                                           \
      return error_;                                      \
  } while (0)

#endif
