/* Properties of a GPU, in the struct of one CUDA release, which build.py chooses. CUDA 12 added fields after those of
   CUDA 11, and CUDA 13 removed fields from the middle. */
#include "../gpusim.h"

#include <stddef.h>
#include <string.h>

typedef struct {
  char name[256];
  uint8_t uuid[16];
  char luid[8];
  unsigned luid_mask;
  size_t memory_bytes, shared_bytes_per_block;
  int registers_per_block, warp_size;
  size_t memory_pitch;
  int max_threads_per_block, max_threads[3], max_grid[3];
#if CUDART_VERSION < 13000
  int clock_khz;
#endif
  size_t constant_bytes;
  int major, minor;
  size_t texture_alignment, texture_pitch_alignment;
#if CUDART_VERSION < 13000
  int overlap;
#endif
  int multiprocessors;
#if CUDART_VERSION < 13000
  int kernel_timeout;
#endif
  int is_integrated, can_map_host_memory;
#if CUDART_VERSION < 13000
  int compute_mode;
#endif
  int texture_1d[2];
#if CUDART_VERSION < 13000
  int texture_1d_linear;
#endif
  int texture_2d[9], texture_3d[6], texture_layered[8], surface[14];
  size_t surface_alignment;
  int concurrent_kernels, has_ecc, pci_bus, pci_device, pci_domain, is_tcc, async_engines, unified_addressing;
#if CUDART_VERSION < 13000
  int memory_clock_khz;
#endif
  int memory_bus_bits, l2_bytes, l2_persisting_bytes, threads_per_multiprocessor;
  int stream_priorities, l1_global, l1_local;
  size_t shared_bytes_per_multiprocessor;
  int registers_per_multiprocessor, managed_memory, is_multi_gpu_board, board_group, native_atomics;
#if CUDART_VERSION < 13000
  int single_to_double_ratio;
#endif
  int pageable_access, concurrent_managed_access, preemption, registered_host_pointers, cooperative_launch;
#if CUDART_VERSION < 13000
  int cooperative_multi_device_launch;
#endif
  size_t shared_bytes_per_block_optin;
} Properties;

CUresult cuDeviceGetName(char *name, int size, CUdevice device);
CUresult cuDeviceGetUuid_v2(void *uuid, CUdevice device);
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);
cudaError cudaGetDeviceCount(int *count);

static int attribute(int number, int device) {
  int value = 0;
  cuDeviceGetAttribute(&value, number, device);
  return value;
}

static Properties describe(int device) {
  Properties known = {
      .shared_bytes_per_block = (size_t)attribute(8, device),
      .registers_per_block = attribute(12, device),
      .warp_size = attribute(10, device),
      .memory_pitch = 1u << 31,
      .max_threads_per_block = attribute(1, device),
      .max_threads = {attribute(2, device), attribute(3, device), attribute(4, device)},
      .max_grid = {attribute(5, device), attribute(6, device), attribute(7, device)},
#if CUDART_VERSION < 13000
      .clock_khz = attribute(13, device),
      .compute_mode = attribute(20, device),
      .memory_clock_khz = attribute(36, device),
#endif
      .constant_bytes = (size_t)attribute(9, device),
      .major = attribute(75, device),
      .minor = attribute(76, device),
      .multiprocessors = attribute(16, device),
      .can_map_host_memory = attribute(19, device),
      .concurrent_kernels = attribute(31, device),
      .pci_bus = attribute(33, device),
      .pci_device = attribute(34, device),
      .pci_domain = attribute(50, device),
      .async_engines = attribute(40, device),
      .unified_addressing = attribute(41, device),
      .memory_bus_bits = attribute(37, device),
      .l2_bytes = attribute(38, device),
      .threads_per_multiprocessor = attribute(39, device),
      .stream_priorities = attribute(78, device),
      .shared_bytes_per_multiprocessor = (size_t)attribute(81, device),
      .registers_per_multiprocessor = attribute(82, device),
      .shared_bytes_per_block_optin = (size_t)attribute(97, device),
  };
  cuDeviceGetName(known.name, sizeof known.name, device);
  cuDeviceGetUuid_v2(known.uuid, device);
  cuDeviceTotalMem_v2(&known.memory_bytes, device);
  return known;
}

/* Fill the caller's struct. We know only the fields at its beginning, and set the others to 0. */
static cudaError fill(void *properties, size_t size, size_t known_size, int device) {
  int count;
  cudaError error = cudaGetDeviceCount(&count);
  if (error) {
    return error;
  }
  if (device < 0 || device >= count) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  Properties known = describe(device);
  memset(properties, 0, size);
  memcpy(properties, &known, known_size);
  return CUDA_SUCCESS;
}

#if CUDART_VERSION >= 13000
API cudaError cudaGetDeviceProperties(void *properties, int device) {
  return fill(properties, 1000, sizeof(Properties), device);
}
#else
API cudaError cudaGetDeviceProperties_v2(void *properties, int device) {
  return fill(properties, 1032, sizeof(Properties), device);
}

/* The second half of the struct is different in CUDA 10 and 11. */
API cudaError cudaGetDeviceProperties(void *properties, int device) {
  return fill(properties, 632, offsetof(Properties, kernel_timeout), device);
}
#endif
