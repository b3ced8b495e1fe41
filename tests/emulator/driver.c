/* libcuda's few functions that the topology asks, for ULYSSES_EMULATED_GPUS (1) GPUs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  unsigned char bytes[16];
} Uuid;

static int devices(void) {
  const char* text = getenv("ULYSSES_EMULATED_GPUS");
  return text != NULL ? atoi(text) : 1;
}

int cuInit(unsigned flags) {
  (void)flags;
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = devices();
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal < devices() ? 0 : 101;
}
int cuDeviceGetName(char* name, int length, int device) {
  (void)device;
  snprintf(name, (size_t)length, "NVIDIA Emulated");
  return 0;
}
int cuDeviceGetUuid_v2(Uuid* uuid, int device) {
  memset(uuid, 0xe0, sizeof *uuid);
  uuid->bytes[15] = (unsigned char)device;
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  (void)device;
  *value = attribute == 75 ? 9 : 0;
  return 0;
}
int cuDeviceGetPCIBusId(char* id, int length, int device) {
  snprintf(id, (size_t)length, "0000:%02x:00.0", 1 + device);
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
