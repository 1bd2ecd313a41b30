// MIG: GPU instances with one compute instance each. The file of the box cuts them; calls only read.
#include "gpu_box.h"

#include <stdio.h>
#include <string.h>

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
  WITH_DEVICE(device);
  if (!at.gpu->board->profiles || at.instance) return NVML_ERROR_NOT_SUPPORTED;
  *current = *pending = (unsigned)at.gpu->in_mig_mode;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig) {
  WITH_DEVICE(device);
  *is_mig = at.instance != NULL;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count) {
  WITH_DEVICE(device);
  *count = at.gpu->board->profiles ? MAX_INSTANCES : 0;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int slot, nvmlDevice_t *instance) {
  WITH_DEVICE(device);
  if (slot >= MAX_INSTANCES || !at.gpu->in_mig_mode || !at.gpu->instances[slot].profile) return NVML_ERROR_NOT_FOUND;
  *instance = handle_of_instance(at.index, slot);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t instance, nvmlDevice_t *device) {
  WITH_INSTANCE(instance);
  *device = handle_of_gpu(at.index);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t instance, unsigned int *id) {
  WITH_INSTANCE(instance);
  *id = at.instance->id;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t instance, unsigned int *id) {
  WITH_INSTANCE(instance);
  *id = 0;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t instance, nvmlDeviceAttributes_t *attributes) {
  WITH_INSTANCE(instance);
  const struct profile *profile = at.instance->profile;
  *attributes = (nvmlDeviceAttributes_t){
      .multiprocessorCount = profile->multiprocessors,
      .sharedCopyEngineCount = profile->copy,
      .sharedDecoderCount = profile->decoder,
      .sharedEncoderCount = profile->encoder,
      .sharedJpegCount = profile->jpeg,
      .sharedOfaCount = profile->ofa,
      .gpuInstanceSliceCount = profile->slices,
      .computeInstanceSliceCount = profile->slices,
      .memorySizeMB = profile->mib,
  };
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t instance, nvmlDeviceAttributes_t *attributes) {
  return nvmlDeviceGetAttributes_v2(instance, attributes);
}

static const struct profile *profile_of_kind(const struct board *board, unsigned kind) {
  for (const struct profile *profile = board->profiles; profile && profile->name; profile++)
    if (profile->kind == kind) return profile;
  return NULL;
}
nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int kind, nvmlGpuInstanceProfileInfo_t *info) {
  WITH_DEVICE(device);
  const struct profile *profile = profile_of_kind(at.gpu->board, kind);
  if (!profile) return NVML_ERROR_NOT_SUPPORTED;
  *info = (nvmlGpuInstanceProfileInfo_t){
      .id = profile->id,
      .sliceCount = profile->slices,
      .instanceCount = profile->count,
      .multiprocessorCount = profile->multiprocessors,
      .copyEngineCount = profile->copy,
      .decoderCount = profile->decoder,
      .encoderCount = profile->encoder,
      .jpegCount = profile->jpeg,
      .ofaCount = profile->ofa,
      .memorySizeMB = profile->mib,
  };
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance) {
  WITH_DEVICE(device);
  for (unsigned slot = 0; slot < MAX_INSTANCES; slot++) {
    if (!at.gpu->instances[slot].profile || at.gpu->instances[slot].id != id) continue;
    *instance = handle_of_instance(at.index, slot);
    return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}
nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info) {
  WITH_INSTANCE(instance);
  *info = (nvmlGpuInstanceInfo_t){
      .device = handle_of_gpu(at.index),
      .id = at.instance->id,
      .profileId = at.instance->profile->id,
      .placement = {at.instance->start, at.instance->profile->size},
  };
  return NVML_SUCCESS;
}

// NVML_COMPUTE_INSTANCE_PROFILE_…: seven slices have number 4, the others are counted.
static unsigned compute_kind(unsigned slices) { return slices == MAX_INSTANCES ? 4 : slices - 1; }
nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(
    nvmlGpuInstance_t instance, unsigned int kind, unsigned int engine, nvmlComputeInstanceProfileInfo_t *info) {
  WITH_INSTANCE(instance);
  const struct profile *profile = at.instance->profile;
  if (engine || kind != compute_kind(profile->slices)) return NVML_ERROR_NOT_SUPPORTED;
  *info = (nvmlComputeInstanceProfileInfo_t){
      .id = kind,
      .sliceCount = profile->slices,
      .instanceCount = 1,
      .multiprocessorCount = profile->multiprocessors,
      .sharedCopyEngineCount = profile->copy,
      .sharedDecoderCount = profile->decoder,
      .sharedEncoderCount = profile->encoder,
      .sharedJpegCount = profile->jpeg,
      .sharedOfaCount = profile->ofa,
  };
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned int id, nvmlComputeInstance_t *compute) {
  WITH_INSTANCE(instance);
  if (id) return NVML_ERROR_NOT_FOUND;
  *compute = handle_of_instance(at.index, at.slot);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info) {
  WITH_INSTANCE(compute);
  *info = (nvmlComputeInstanceInfo_t){
      .device = handle_of_gpu(at.index),
      .gpuInstance = handle_of_instance(at.index, at.slot),
      .profileId = compute_kind(at.instance->profile->slices),
      .placement = {0, at.instance->profile->slices},
  };
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info) {
  return nvmlComputeInstanceGetInfo_v2(compute, info);
}
