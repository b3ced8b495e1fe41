// A build without CUDA, in which no soak asks for device memory.
#include "soak/buffer.h"

namespace ulysses::testing {

void* takeOnDevice(size_t) { return nullptr; }
void giveBackOnDevice(void*, size_t) {}
void fillOnDevice(void*, const Content&) {}
bool heldOnDevice(const void*, const Content&) { return false; }
size_t usedOnDevice() { return 0; }
void chooseDevice(int) {}

}  // namespace ulysses::testing
