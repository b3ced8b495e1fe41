/* libcuda's few functions that the topology asks. */
#include <stdio.h>
#include <string.h>

#include "gpus.h"

enum { kNoDevice = 100, kInvalidDevice = 101 };

typedef struct {
  unsigned char bytes[16];
} Uuid;

int cuInit(unsigned flags) {
  (void)flags;
  return emulatedVisible() > 0 ? 0 : kNoDevice;
}
int cuDeviceGetCount(int* count) {
  *count = emulatedVisible();
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return emulatedGpu(ordinal) >= 0 ? 0 : kInvalidDevice;
}
int cuDeviceGetName(char* name, int length, int device) {
  (void)device;
  snprintf(name, (size_t)length, "NVIDIA Emulated");
  return 0;
}
int cuDeviceGetUuid_v2(Uuid* uuid, int device) {
  memset(uuid, 0xe0, sizeof *uuid);
  uuid->bytes[15] = (unsigned char)emulatedGpu(device);
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  (void)device;
  *value = attribute == 75 ? 9 : 0;
  return 0;
}
int cuDeviceGetPCIBusId(char* id, int length, int device) {
  snprintf(id, (size_t)length, "0000:%02x:00.0", 1 + emulatedGpu(device));
  return 0;
}
int cuDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = device != peer;
  return 0;
}
int cuGetErrorString(int result, const char** text) {
  (void)result;
  *text = "an error of the emulator";
  return 0;
}
