// XID errors: a line "GPU XID [GPU-INSTANCE COMPUTE-INSTANCE]" that is appended to the file of the box with the suffix .events.
#include "gpu_box.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { POLL_MS = 50 };
static const unsigned WHOLE_GPU = 0xFFFFFFFF;

struct event_set {
  long read; // bytes of the file
};

static void events_path(char *path, size_t length) { snprintf(path, length, "%s.events", box_path()); }

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *out) {
  struct event_set *set = calloc(1, sizeof *set);
  if (!set) return NVML_ERROR_MEMORY;
  char path[MAX_PATH];
  struct stat events;
  events_path(path, sizeof path);
  if (!stat(path, &events)) set->read = events.st_size;
  *out = (nvmlEventSet_t)set;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
  free(set);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types) {
  WITH_DEVICE(device);
  *types = nvmlEventTypeXidCriticalError | nvmlEventTypeDoubleBitEccError | nvmlEventTypeSingleBitEccError;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
  (void)types;
  (void)set;
  WITH_DEVICE(device);
  return NVML_SUCCESS;
}

// Whether a whole line follows, and what it says.
static int next_event(struct event_set *set, nvmlEventData_t *event) {
  char path[MAX_PATH], line[128];
  events_path(path, sizeof path);
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  fseek(file, set->read, SEEK_SET);
  int is_whole = fgets(line, sizeof line, file) && strchr(line, '\n');
  if (is_whole) set->read = ftell(file);
  fclose(file);
  unsigned gpu = 0, xid = 0, instance = WHOLE_GPU, compute = WHOLE_GPU;
  if (!is_whole || sscanf(line, "%u %u %u %u", &gpu, &xid, &instance, &compute) < 2 || gpu >= MAX_GPUS) return 0;
  *event = (nvmlEventData_t){
      .device = handle_of_gpu(gpu),
      .eventType = nvmlEventTypeXidCriticalError,
      .eventData = xid,
      .gpuInstanceId = instance,
      .computeInstanceId = compute,
  };
  return 1;
}
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *event, unsigned int timeout_ms) {
  for (unsigned waited = 0; waited < timeout_ms; waited += POLL_MS) {
    if (next_event((struct event_set *)set, event)) return NVML_SUCCESS;
    usleep(POLL_MS * 1000);
  }
  return NVML_ERROR_TIMEOUT;
}
