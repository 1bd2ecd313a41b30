// The GPUs of one node as a text file describes them.
//
//   driver 550.163.01
//   cuda 12.4
//   gpu board=h100-80 uuid=GPU-… numa=0 mig=on
//   mig gpu=0 profile=3g.40gb
//
// $COMITY_NVML_BOX names the file. It is read again at the next call after it changed.
#ifndef GPU_BOX_H
#define GPU_BOX_H

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include "nvml.h"

enum { MAX_GPUS = 16, MAX_INSTANCES = 7, MAX_PATH = 4096 };

// A MIG profile, as `nvidia-smi mig -lgip` lists it.
struct profile {
  const char *name;
  unsigned kind, id; // NVML_GPU_INSTANCE_PROFILE_…, and the number that nvidia-smi shows
  unsigned slices, count, multiprocessors, copy, decoder, encoder, jpeg, ofa;
  unsigned long long mib;
  unsigned size, start_count, starts[MAX_INSTANCES]; // in memory slices
};

struct board {
  const char *key, *name;
  unsigned long long mib;
  int compute_major, compute_minor;
  unsigned architecture, brand, pci_device;
  const struct profile *profiles; // ends with one without a name; NULL: no MIG
};

// A GPU instance with its only compute instance.
struct instance {
  const struct profile *profile; // NULL: none in this slot
  unsigned id, start;
};

struct gpu {
  const struct board *board;
  char uuid[80], bus[32], cluster[40];
  int clique, in_mig_mode;
  struct instance instances[MAX_INSTANCES];
};

struct gpu_box {
  char driver[80];
  int cuda; // 12040 for 12.4
  unsigned count;
  struct gpu gpus[MAX_GPUS];
};

// The object of a handle. A MIG device, its GPU instance and its compute instance have one handle.
struct found {
  nvmlReturn_t error;
  unsigned index, slot;
  const struct gpu *gpu;
  const struct instance *instance; // NULL: the whole GPU
};

const struct board *board_of_key(const char *key);
const struct profile *profile_of_name(const struct board *board, const char *name);
const char *box_path(void);

// The box of the present file. Every caller ends with unlock_box.
const struct gpu_box *lock_box(void);
void unlock_box(const struct gpu_box **box);
void *handle_of_gpu(unsigned gpu);
void *handle_of_instance(unsigned gpu, unsigned slot);
struct found find(const struct gpu_box *box, const void *handle);
nvmlReturn_t copy_text(char *to, unsigned length, const char *text);

#define WITH_BOX const struct gpu_box *box __attribute__((cleanup(unlock_box))) = lock_box()
#define WITH_DEVICE(handle)               \
  WITH_BOX;                               \
  struct found at = find(box, (handle));  \
  if (at.error != NVML_SUCCESS) return at.error
#define WITH_INSTANCE(handle) \
  WITH_DEVICE(handle);        \
  if (!at.instance) return NVML_ERROR_INVALID_ARGUMENT

#endif
