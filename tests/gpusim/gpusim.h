/* The simulated GPU server: one shared object that stands in for the NVIDIA driver, NVML and the CUDA
   libraries, so that unmodified programs believe in the GPUs that a fleet file describes.

   What is simulated
   - The machine: N GPUs with name, UUID, PCI address, memory, compute capability; other people's load and
     processes on them. The description is read again when its file changes.
   - Memory. Every process's contexts and allocations are kept in one ledger, shared between processes, so
     that NVML in one process sees what another took, nobody gets what is not there, and the memory of a
     process that ended, however it ended, is free again.
   - The life of a process with CUDA: nothing works before cuInit, CUDA_VISIBLE_DEVICES and
     CUDA_DEVICE_ORDER are read there once, a forked child of an initialised process can't use CUDA.
   - Device files, where the fleet names some: a GPU whose file a process can't open, as in a container or a
     job with a device cgroup, is denied to it.
   - Cards in MIG mode: their instances as devices of their own, what CUDA lists of them, old driver and new.
   - Compute modes, and faults on request: NVML that fails, hangs or crashes, a GPU that is lost, forbidden
     or hanging, readings that a GPU doesn't have, process lists that are empty.
   - What connects the GPUs: NVLinks, NVSwitch, PCI Express.
   - A log of what the driver was asked.

   What is not simulated
   - Arithmetic. Kernels are accepted and never run; only copies and fills really happen. Every number a
     program computes is garbage: never assert on a loss.
   - Time. All work is complete the moment it is asked for.
   - MPS, ECC, virtual GPUs, several compute instances in one GPU instance, pids of another namespace. Asked for them, NVML says NOT_SUPPORTED, as it
     does for a GPU without them.
   - What goes over NVLink or PCI Express: which GPUs are connected, and how, is only told.

   What it can't tell
   The real driver parses CUDA_VISIBLE_DEVICES; here our reading of its documentation does. So tests on this
   server can't prove the parsing rules, the device order, the size of a context, timing, or how GPUs behave
   when shared. Each such rule names its source where it is written.

   How it is built up
     fleet.c           the description of the machine      driver_copy.c     copies and fills
     ledger.c          who has how much of which GPU       driver_stream.c   streams, events, callbacks
     log.c             what the driver was asked           driver_module.c   modules, kernels
     process.c         the lock, fork, hanging             driver_entry.c    what works before cuInit
     visible.c         the GPUs a process may see          runtime.c         the runtime API over the driver's
     driver_device.c   cuInit, devices                     nvml.c            NVML: the library and the machine
     driver_context.c  contexts                            nvml_device.c     NVML: one GPU
     driver_memory.c   allocations                         nvml_process.c    NVML: processes and samples
     driver_pool.c     memory pools, reserved addresses    mathlib.c         cuBLAS, cuDNN and the like
     driver_share.c    memory shared between processes     cufft.c, nccl.c,  the libraries of these names
     driver_graph.c    graphs                              nvrtc.c
     runtime_memory.c  memory, streams, events             cudnn_layers.c    cuDNN's layers
     runtime_graph.c   capture and graphs                  cudnn_recurrent.c cuDNN's LSTM and GRU
     device_files.c    GPUs denied to a process            missing.c         functions that nobody wrote
     nvml_mig.c        NVML: the instances of a card       mig.c             names of instances
     nvml_topology.c   NVML: what connects two GPUs
     release/          libraries that tell their version   preload/          files in /dev

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

/* The same function under the name that an older header gave it. */
#define ALIAS(old_name, new_name) extern API __typeof(new_name) old_name __attribute__((alias(#new_name)))

/* ---- fleet.c ---- */

#define MAX_GPUS 128 /* cards and instances: 64 of each, as many instances as the driver admits */
#define MAX_OTHERS 64 /* other people's processes on one GPU */
#define MAX_SAMPLES 64
#define MAX_LINKS 18
#define MAX_STEPS 5 /* on the way from a machine to a GPU */
#define MAX_PATH 1024

/* A process and the memory it has on one GPU. */
typedef struct Gpu Gpu;
typedef struct {
  uint32_t pid;
  uint64_t bytes;
  const Gpu *instance; /* of the card; NULL for the whole */
} Holding;

typedef struct {
  int count;
  Holding holding[MAX_OTHERS];
} Holdings;

/* What NVML can be asked about a GPU, for a fleet's `unsupported`. */
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
  READING_OF_CARD = 1 << 14, /* not for a fleet: what an instance of a card doesn't have */
} Reading;

typedef enum {
  ROW_REMAPPING_PENDING = 1,
  ROW_REMAPPING_FAILED = 1 << 1,
  PAGE_RETIREMENT_PENDING = 1 << 2,
} Sickness;

/* A fault is 0 for none, the error code to answer, or one of these. */
enum { FAULT_HANG = -1, FAULT_CRASH = -2 };

/* CUDA and NVML number the compute modes alike. */
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
  PciAddress links[MAX_LINKS]; /* the other end: a GPU, a switch where no GPU has that address, 0 for none */
  int path_length;
  unsigned path[MAX_STEPS]; /* NUMA node, host bridge, first switch, last switch, board */
  uint64_t memory_bytes;
  uint64_t used_bytes; /* held by no process that anybody can see */
  Holdings compute, graphics;
  int sample_count;
  unsigned samples[MAX_SAMPLES]; /* utilization in percent; the last one is now */
  int major, minor, multiprocessors;
  int speed; /* rank for FASTEST_FIRST; 0 = from the two lines above */
  int compute_mode;
  int nvml_fault;
  bool hide_processes;
  unsigned unsupported; /* set of Reading */
  bool has_ecc;
  uint64_t uncorrected_errors;
  unsigned health; /* set of Sickness */
  bool can_mig, in_mig_mode;
  bool is_instance; /* and then has all of the following */
  int card;         /* its index in the fleet */
  int mig_index;    /* among the instances of its card; some may be missing */
  unsigned gpu_instance, compute_instance;
};

typedef struct {
  char driver[32];
  int cuda_version;       /* 12040; the driver's, libraries have their own */
  uint64_t context_bytes; /* what each context costs each process */
  int nvml_fault, cuda_fault;
  char device_files[MAX_PATH]; /* "" for none: nobody is denied a GPU */
  bool omits_denied;           /* NVML leaves a denied GPU out, and else answers with NO_PERMISSION */
  int gpu_count;     /* of cards: they come first, in PCI order, which is NVML's order */
  int device_count;  /* and of instances, which come then */
  Gpu gpu[MAX_GPUS];
} Fleet;

/* The fleet as its file says now. A snapshot stays valid for the life of the process. */
const Fleet *fleet_now(void);
unsigned gpu_utilization(const Gpu *gpu);

/* ---- device_files.c ---- */

/* Whether this process may not open the GPU's device file now; for an instance, that of its card or its own. */
bool device_file_is_denied(const Fleet *fleet, int gpu);
/* Whether this process may not look at a card in MIG mode as a whole. */
bool monitor_file_is_denied(const Fleet *fleet);

/* ---- mig.c ---- */

/* 550 for driver "550.54.15". */
int driver_branch(const Fleet *fleet);
/* A GPU's; an instance fails with its card. */
int fault_of(const Fleet *fleet, const Gpu *gpu);
bool is_name_of_instance(const Fleet *fleet, int gpu, const char *text, size_t length);
/* Those of a card that this process may open, by their numbers in the fleet. */
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

/* `gpu` -1 for calls that concern none. */
void log_call(const char *call, int gpu, uint64_t bytes);

/* ---- process.c ---- */

/* One recursive lock for all state of this process, so that a fork can hold it. */
void process_lock(void);
void process_unlock(void);
/* Whether this process came from fork() without an exec after CUDA was initialised in its parent. */
bool process_is_forked_from_cuda(void);
void process_has_cuda(void);
/* Hangs or crashes where the fault says so; other faults are returned, to be answered. */
int suffer(int fault);
/* A path from the environment as it was when the library was loaded. */
typedef enum { PATH_FLEET, PATH_STATE, PATH_LOG } Path;
const char *process_path(Path path);
_Noreturn void give_up(const char *what, const char *path);

/* ---- visible.c ---- */

/* Fills the list with the GPUs of the fleet that this process may see, in CUDA's order. */
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

/* Let the host callbacks that were queued so far fill what a copy is about to read; at most for a moment, since a
   callback may wait for what its program does after the copy. */
void callbacks_settle(void);

typedef struct Stream {
  Context *context;
  unsigned flags;
  int priority;
  void *captured_graph;
} Stream;

typedef struct Event Event;

/* Every driver call but those about versions and error texts begins with this. */
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

/* A driver call that has no effect anybody here could see. */
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

/* A thing that only has to be told from others: a module, a function, a graph. */
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

typedef int cudaError; /* numbered like the driver's where both have an error */

/* Makes an error the one that cudaGetLastError tells. */
cudaError remember_error(cudaError error);
cudaError use_current_device(void);
#define NEEDS_CURRENT_DEVICE                 \
  do {                                       \
    cudaError error_ = use_current_device(); \
    if (error_)                              \
      return error_;                         \
  } while (0)

/* Of no effect here; the real ones don't fail before a device is used, so these don't either. */
#define ACCEPT_ALWAYS(function, ...)    \
  API cudaError function(__VA_ARGS__) { \
    return CUDA_SUCCESS;                \
  }

/* ---- NVML ---- */

typedef int nvmlReturn;
typedef uintptr_t nvmlDevice; /* the index in the fleet and 1: of a card or of an instance */

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
/* A GPU of the fleet by the number that NVML gives it. */
unsigned nvml_index(const Fleet *fleet, int gpu);
/* An instance by its number on its card. */
unsigned nvml_mig_index(const Fleet *fleet, int gpu);
nvmlReturn nvml_copy_text(char *to, unsigned size, const char *text);
/* Finds the GPU for one reading; suffers the GPU's fault, and fails where it doesn't have that reading. */
nvmlReturn nvml_find(nvmlDevice device, Reading reading, const Gpu **gpu);
/* The handle of what has this number in the fleet, where nothing keeps it from being asked. */
nvmlReturn nvml_hand_over(int index_in_fleet, nvmlDevice *device);
#define NEEDS_GPU(device, reading)                        \
  const Gpu *gpu;                                         \
  do {                                                    \
    nvmlReturn error_ = nvml_find(device, reading, &gpu); \
    if (error_)                                           \
      return error_;                                      \
  } while (0)

#endif
