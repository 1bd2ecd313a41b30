// Reads the file of the box, and finds the object of a handle.
#include "gpu_box.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct gpu_box box;
static struct stat last_read;
// Only the addresses matter: the first of a row is the GPU, the others are its instances.
static char handles[MAX_GPUS][1 + MAX_INSTANCES];

const char *box_path(void) {
  const char *path = getenv("COMITY_NVML_BOX");
  return path ? path : "/run/nvidia/box";
}

// The value of "key=value" in a line, or "".
static const char *field(const char *line, const char *key, char *value, size_t length) {
  char wanted[32];
  snprintf(wanted, sizeof wanted, " %s=", key);
  const char *at = strstr(line, wanted);
  size_t found = 0;
  if (at) {
    at += strlen(wanted);
    found = strcspn(at, " \n");
    if (found >= length) found = length - 1;
    memcpy(value, at, found);
  }
  value[found] = 0;
  return value;
}

static void read_gpu(const char *line) {
  char value[128];
  const struct board *board = board_of_key(field(line, "board", value, sizeof value));
  if (!board || box.count == MAX_GPUS) return;
  unsigned index = box.count++;
  struct gpu *gpu = &box.gpus[index];
  gpu->board = board;
  if (!*field(line, "uuid", gpu->uuid, sizeof gpu->uuid))
    snprintf(gpu->uuid, sizeof gpu->uuid, "GPU-00000000-0000-4000-8000-%012x", index);
  if (!*field(line, "bus", gpu->bus, sizeof gpu->bus)) snprintf(gpu->bus, sizeof gpu->bus, "0000:%02x:00.0", 0x10 + index);
  gpu->in_mig_mode = !strcmp(field(line, "mig", value, sizeof value), "on");
  field(line, "cluster", gpu->cluster, sizeof gpu->cluster);
  gpu->clique = atoi(field(line, "clique", value, sizeof value));
}

static int is_free(const struct gpu *gpu, unsigned start, unsigned size) {
  for (int slot = 0; slot < MAX_INSTANCES; slot++) {
    const struct instance *other = &gpu->instances[slot];
    if (other->profile && start < other->start + other->profile->size && other->start < start + size) return 0;
  }
  return 1;
}

// Cuts an instance at the first place that is free, as the driver does.
static void read_instance(const char *line) {
  char value[128];
  unsigned index = (unsigned)atoi(field(line, "gpu", value, sizeof value));
  if (index >= box.count) return;
  struct gpu *gpu = &box.gpus[index];
  const struct profile *profile = profile_of_name(gpu->board, field(line, "profile", value, sizeof value));
  for (unsigned n = 0; profile && n < profile->start_count; n++) {
    unsigned start = profile->starts[n];
    if (!is_free(gpu, start, profile->size)) continue;
    for (int slot = 0; slot < MAX_INSTANCES; slot++) {
      if (gpu->instances[slot].profile) continue;
      // The ids are unique within the GPU: small instances have those from 7.
      gpu->instances[slot] = (struct instance){profile, start + (profile->size > 1 ? 1 : 7), start};
      return;
    }
  }
}

static void read_box(void) {
  struct stat now;
  if (stat(box_path(), &now)) {
    memset(&box, 0, sizeof box);
    return;
  }
  // Writers replace the file, so that a change within the grain of the clock has another inode.
  if (now.st_ino == last_read.st_ino && !memcmp(&now.st_mtim, &last_read.st_mtim, sizeof now.st_mtim)) return;
  FILE *file = fopen(box_path(), "r");
  if (!file) return;
  last_read = now;
  memset(&box, 0, sizeof box);
  char line[512];
  while (fgets(line, sizeof line, file)) {
    int major = 0, minor = 0;
    if (sscanf(line, "cuda %d.%d", &major, &minor) == 2) box.cuda = major * 1000 + minor * 10;
    else if (!strncmp(line, "gpu ", 4)) read_gpu(line);
    else if (!strncmp(line, "mig ", 4)) read_instance(line);
    else sscanf(line, "driver %79s", box.driver);
  }
  fclose(file);
}

const struct gpu_box *lock_box(void) {
  pthread_mutex_lock(&mutex);
  read_box();
  return &box;
}

void unlock_box(const struct gpu_box **locked) {
  (void)locked;
  pthread_mutex_unlock(&mutex);
}

void *handle_of_gpu(unsigned gpu) { return &handles[gpu][0]; }
void *handle_of_instance(unsigned gpu, unsigned slot) { return &handles[gpu][1 + slot]; }

struct found find(const struct gpu_box *from, const void *handle) {
  size_t offset = (size_t)((const char *)handle - &handles[0][0]);
  struct found found = {.error = NVML_ERROR_INVALID_ARGUMENT};
  if (!handle || offset >= sizeof handles || offset / (1 + MAX_INSTANCES) >= from->count) return found;
  found.index = (unsigned)(offset / (1 + MAX_INSTANCES));
  found.gpu = &from->gpus[found.index];
  unsigned row = (unsigned)(offset % (1 + MAX_INSTANCES));
  if (row) {
    found.slot = row - 1;
    found.instance = &found.gpu->instances[found.slot];
    if (!found.instance->profile) {
      found.error = NVML_ERROR_NOT_FOUND;
      return found;
    }
  }
  found.error = NVML_SUCCESS;
  return found;
}

nvmlReturn_t copy_text(char *to, unsigned length, const char *text) {
  if (strlen(text) >= length) return NVML_ERROR_INSUFFICIENT_SIZE;
  strcpy(to, text);
  return NVML_SUCCESS;
}
