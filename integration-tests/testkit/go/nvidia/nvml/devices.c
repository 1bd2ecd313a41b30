// A stand-in for NVIDIA's management library: the system and its devices.
//
// It is enough for the device plugin and GPU Feature Discovery. Functions that are missing here come from a generated file
// of weak ones, which answer NVML_ERROR_NOT_SUPPORTED. Nothing computes: there is no device behind it.
#include "gpu_box.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

nvmlReturn_t nvmlInit_v2(void) { return access(box_path(), R_OK) ? NVML_ERROR_DRIVER_NOT_LOADED : NVML_SUCCESS; }
nvmlReturn_t nvmlInit(void) { return nvmlInit_v2(); }
nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
  (void)flags;
  return nvmlInit_v2();
}
nvmlReturn_t nvmlShutdown(void) { return NVML_SUCCESS; }

const char *nvmlErrorString(nvmlReturn_t result) {
  switch (result) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT: return "Timeout";
    default: return "Unknown Error";
  }
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
  WITH_BOX;
  return copy_text(version, length, box->driver);
}
nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
  WITH_BOX;
  char text[100];
  snprintf(text, sizeof text, "%d.%s", box->cuda / 1000, box->driver);
  return copy_text(version, length, text);
}
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
  WITH_BOX;
  *version = box->cuda;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
  WITH_BOX;
  *count = box->count;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCount(unsigned int *count) { return nvmlDeviceGetCount_v2(count); }
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
  WITH_BOX;
  if (index >= box->count) return NVML_ERROR_INVALID_ARGUMENT;
  *device = handle_of_gpu(index);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}

// The same after a restart: made of the GPU's own and the place of the instance.
static void instance_uuid(const struct gpu *gpu, const struct instance *instance, char *uuid, size_t length) {
  unsigned hash = 5381;
  for (const char *letter = gpu->uuid; *letter; letter++) hash = hash * 33 + (unsigned char)*letter;
  snprintf(uuid, length, "MIG-%08x-%04x-5000-8000-%012x", hash, instance->profile->id, instance->start);
}
// The PCI address with eight digits of the domain, as NVML writes it.
static void long_bus(const struct gpu *gpu, char *bus, size_t length) {
  snprintf(bus, length, "0000%s", gpu->bus);
  for (char *letter = bus; *letter; letter++)
    if (*letter >= 'a' && *letter <= 'f') *letter -= 'a' - 'A';
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
  WITH_DEVICE(device);
  if (!at.instance) return copy_text(uuid, length, at.gpu->uuid);
  char text[80];
  instance_uuid(at.gpu, at.instance, text, sizeof text);
  return copy_text(uuid, length, text);
}
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
  WITH_BOX;
  char text[80];
  for (unsigned index = 0; index < box->count; index++) {
    const struct gpu *gpu = &box->gpus[index];
    if (!strcmp(gpu->uuid, uuid)) {
      *device = handle_of_gpu(index);
      return NVML_SUCCESS;
    }
    for (unsigned slot = 0; slot < MAX_INSTANCES; slot++) {
      if (!gpu->instances[slot].profile) continue;
      instance_uuid(gpu, &gpu->instances[slot], text, sizeof text);
      if (strcmp(text, uuid)) continue;
      *device = handle_of_instance(index, slot);
      return NVML_SUCCESS;
    }
  }
  return NVML_ERROR_NOT_FOUND;
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus, nvmlDevice_t *device) {
  WITH_BOX;
  char text[40];
  for (unsigned index = 0; index < box->count; index++) {
    long_bus(&box->gpus[index], text, sizeof text);
    if (strcasecmp(text, bus) && strcasecmp(box->gpus[index].bus, bus)) continue;
    *device = handle_of_gpu(index);
    return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
  WITH_DEVICE(device);
  *index = at.instance ? at.slot : at.index;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor) {
  WITH_DEVICE(device);
  *minor = at.index;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
  WITH_DEVICE(device);
  if (!at.instance) return copy_text(name, length, at.gpu->board->name);
  char text[96];
  snprintf(text, sizeof text, "%s MIG %s", at.gpu->board->name, at.instance->profile->name);
  return copy_text(name, length, text);
}
nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, nvmlBrandType_t *brand) {
  WITH_DEVICE(device);
  *brand = (nvmlBrandType_t)at.gpu->board->brand;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, nvmlDeviceArchitecture_t *architecture) {
  WITH_DEVICE(device);
  *architecture = at.gpu->board->architecture;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
  WITH_DEVICE(device);
  *major = at.gpu->board->compute_major;
  *minor = at.gpu->board->compute_minor;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
  WITH_DEVICE(device);
  memory->total = (at.instance ? at.instance->profile->mib : at.gpu->board->mib) << 20;
  memory->used = 0;
  memory->free = memory->total;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info) {
  WITH_DEVICE(device);
  memset(info, 0, sizeof *info);
  long_bus(at.gpu, info->busId, sizeof info->busId);
  snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "%.15s", at.gpu->bus);
  sscanf(at.gpu->bus, "%x:%x:%x", &info->domain, &info->bus, &info->device);
  info->pciDeviceId = at.gpu->board->pci_device;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *info) { return nvmlDeviceGetPciInfo_v3(device, info); }
nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *info) { return nvmlDeviceGetPciInfo_v3(device, info); }
nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, nvmlGpuTopologyLevel_t *level) {
  (void)one;
  (void)other;
  *level = NVML_TOPOLOGY_HOSTBRIDGE;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, nvmlGpuVirtualizationMode_t *mode) {
  WITH_DEVICE(device);
  *mode = NVML_GPU_VIRTUALIZATION_MODE_NONE;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode) {
  (void)mode;
  WITH_DEVICE(device);
  return NVML_SUCCESS;
}

// The NVLink domain.
nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info) {
  WITH_DEVICE(device);
  if (!*at.gpu->cluster) return NVML_ERROR_NOT_SUPPORTED;
  memset(info, 0, sizeof *info);
  info->state = NVML_GPU_FABRIC_STATE_COMPLETED;
  info->status = NVML_SUCCESS;
  info->cliqueId = (unsigned)at.gpu->clique;
  const char *digits = at.gpu->cluster;
  for (int byte = 0; byte < 16 && *digits; byte++) {
    while (*digits == '-') digits++;
    unsigned value = 0;
    sscanf(digits, "%2x", &value);
    info->clusterUuid[byte] = (unsigned char)value;
    digits += strlen(digits) < 2 ? strlen(digits) : 2;
  }
  return NVML_SUCCESS;
}
