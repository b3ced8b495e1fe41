/* libnvidia-ml as the topology asks it: every GPU is linked to every other by way of a switch. With
   ULYSSES_EMULATED_NVLINK=0 they reach each other over PCIe alone. As NVML does, it shows all GPUs, whatever is visible
   to CUDA. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "gpus.h"

enum { kSuccess = 0, kInvalidArgument = 2, kNotSupported = 3, kNotFound = 6 };
enum { kP2pOk = 0, kP2pTopologyNotSupported = 3, kP2pNvlink = 2, kRemoteIsSwitch = 2, kLinks = 18 };

typedef struct {
  char busIdLegacy[16];
  unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
  char busId[32];
} PciInfo;

static int linked(void) {
  const char* text = getenv("ULYSSES_EMULATED_NVLINK");
  return text == NULL || atoi(text) != 0;
}
static void* handleOf(int gpu) {
  return (void*)(intptr_t)(gpu + 1);
}
static int gpuOf(const void* device) {
  return (int)(intptr_t)device - 1;
}
static void uuidOf(int gpu, char* text, size_t length) {
  snprintf(text, length, "GPU-e0e0e0e0-e0e0-e0e0-e0e0-e0e0e0e0e0%02x", (unsigned)gpu);
}

int nvmlInit_v2(void) {
  return kSuccess;
}
int nvmlShutdown(void) {
  return kSuccess;
}
const char* nvmlErrorString(int result) {
  (void)result;
  return "an error of the emulator";
}
int nvmlSystemGetDriverVersion(char* version, unsigned length) {
  snprintf(version, length, "emulated");
  return kSuccess;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = (unsigned)emulatedGpus();
  return kSuccess;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = handleOf((int)index);
  return (int)index < emulatedGpus() ? kSuccess : kInvalidArgument;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  for (int gpu = 0; gpu < emulatedGpus(); ++gpu) {
    char text[96];
    uuidOf(gpu, text, sizeof text);
    if (strcmp(text, uuid) != 0) continue;
    *device = handleOf(gpu);
    return kSuccess;
  }
  return kNotFound;
}
int nvmlDeviceGetUUID(void* device, char* uuid, unsigned length) {
  uuidOf(gpuOf(device), uuid, length);
  return kSuccess;
}
int nvmlDeviceGetPciInfo_v3(void* device, PciInfo* info) {
  memset(info, 0, sizeof *info);
  info->bus = (unsigned)gpuOf(device) + 1;
  snprintf(info->busId, sizeof info->busId, "00000000:%02X:00.0", info->bus);
  return kSuccess;
}
int nvmlDeviceGetP2PStatus(void* from, void* to, int index, int* status) {
  (void)from, (void)to;
  *status = index == kP2pNvlink && !linked() ? kP2pTopologyNotSupported : kP2pOk;
  return kSuccess;
}
int nvmlDeviceGetNvLinkState(void* device, unsigned link, int* active) {
  (void)device;
  *active = linked();
  return link < kLinks ? kSuccess : kInvalidArgument;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void* device, unsigned link, int* type) {
  (void)device, (void)link;
  *type = kRemoteIsSwitch;
  return kSuccess;
}
