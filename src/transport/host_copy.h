// Copies of rows between host buffers.
#pragma once

#include <cstddef>

#include "layout/block_copy.h"

namespace ulysses {

// How the destination is written: Cached leaves it in the cache for a reader that follows at once, Streaming goes past
// it, which spares reading the destination first.
enum class Store { Cached, Streaming };

// Does one block copy. Streaming stores are ordered only by storeFence().
void copyBlock(const layout::BlockCopy& copy, const std::byte* src, std::byte* dst, Store store);
void storeFence();

}  // namespace ulysses
