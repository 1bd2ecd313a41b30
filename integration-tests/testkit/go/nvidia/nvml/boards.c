// The boards that a box can have. Sizes of MIG profiles are those of NVIDIA's documentation.
#include "gpu_box.h"

#include <string.h>

static const struct profile H100_80[] = {
    {"1g.10gb", 0, 19, 1, 7, 16, 1, 1, 0, 1, 0, 9984, 1, 7, {0, 1, 2, 3, 4, 5, 6}},
    {"1g.10gb+me", 7, 20, 1, 1, 16, 1, 1, 0, 1, 1, 9984, 1, 7, {0, 1, 2, 3, 4, 5, 6}},
    {"1g.20gb", 9, 15, 1, 4, 26, 1, 1, 0, 1, 0, 20096, 2, 4, {0, 2, 4, 6}},
    {"2g.20gb", 1, 14, 2, 3, 32, 2, 2, 0, 2, 0, 20096, 2, 3, {0, 2, 4}},
    {"3g.40gb", 2, 9, 3, 2, 60, 3, 3, 0, 3, 0, 40448, 4, 2, {0, 4}},
    {"4g.40gb", 3, 5, 4, 1, 64, 4, 4, 0, 4, 0, 40448, 4, 1, {0}},
    {"7g.80gb", 4, 0, 7, 1, 132, 8, 7, 0, 7, 1, 81152, 8, 1, {0}},
    {0},
};
static const struct profile A100_40[] = {
    {"1g.5gb", 0, 19, 1, 7, 14, 1, 0, 0, 0, 0, 4864, 1, 7, {0, 1, 2, 3, 4, 5, 6}},
    {"1g.5gb+me", 7, 20, 1, 1, 14, 1, 1, 0, 1, 1, 4864, 1, 7, {0, 1, 2, 3, 4, 5, 6}},
    {"1g.10gb", 9, 15, 1, 4, 14, 1, 1, 0, 0, 0, 9984, 2, 4, {0, 2, 4, 6}},
    {"2g.10gb", 1, 14, 2, 3, 28, 2, 1, 0, 0, 0, 9984, 2, 3, {0, 2, 4}},
    {"3g.20gb", 2, 9, 3, 2, 42, 3, 2, 0, 0, 0, 20096, 4, 2, {0, 4}},
    {"4g.20gb", 3, 5, 4, 1, 56, 4, 2, 0, 0, 0, 20096, 4, 1, {0}},
    {"7g.40gb", 4, 0, 7, 1, 98, 7, 5, 0, 1, 1, 40320, 8, 1, {0}},
    {0},
};

static const struct board BOARDS[] = {
    {"h100-80", "NVIDIA H100 80GB HBM3", 81559, 9, 0, NVML_DEVICE_ARCH_HOPPER, NVML_BRAND_NVIDIA, 0x233010DE, H100_80},
    {"a100-40", "NVIDIA A100-SXM4-40GB", 40960, 8, 0, NVML_DEVICE_ARCH_AMPERE, NVML_BRAND_NVIDIA, 0x20B010DE, A100_40},
    {"b200", "NVIDIA B200", 183359, 10, 0, NVML_DEVICE_ARCH_BLACKWELL, NVML_BRAND_NVIDIA, 0x290110DE, NULL},
    {"l40s", "NVIDIA L40S", 46068, 8, 9, NVML_DEVICE_ARCH_ADA, NVML_BRAND_NVIDIA, 0x26B910DE, NULL},
    {"l4", "NVIDIA L4", 23034, 8, 9, NVML_DEVICE_ARCH_ADA, NVML_BRAND_NVIDIA, 0x27B810DE, NULL},
    {"t4", "Tesla T4", 15360, 7, 5, NVML_DEVICE_ARCH_TURING, NVML_BRAND_TESLA, 0x1EB810DE, NULL},
    {0},
};

const struct board *board_of_key(const char *key) {
  for (const struct board *board = BOARDS; board->key; board++)
    if (!strcmp(board->key, key)) return board;
  return NULL;
}

const struct profile *profile_of_name(const struct board *board, const char *name) {
  for (const struct profile *profile = board->profiles; profile && profile->name; profile++)
    if (!strcmp(profile->name, name)) return profile;
  return NULL;
}
