// Element sizes and names of ulyssesDataType_t.
#pragma once

#include <ulysses/ulysses.h>

#include <cstddef>
#include <string_view>

namespace ulysses {

struct DataTypeFacts {
  std::string_view name;
  size_t bytes;
};

// Nothing for a value outside the enum (bytes 0).
constexpr DataTypeFacts dataTypeFacts(int dtype) {
  switch (dtype) {
    case ulyssesInt8: return {"int8", 1};
    case ulyssesUint8: return {"uint8", 1};
    case ulyssesInt32: return {"int32", 4};
    case ulyssesUint32: return {"uint32", 4};
    case ulyssesInt64: return {"int64", 8};
    case ulyssesUint64: return {"uint64", 8};
    case ulyssesFloat16: return {"float16", 2};
    case ulyssesFloat32: return {"float32", 4};
    case ulyssesFloat64: return {"float64", 8};
    case ulyssesBfloat16: return {"bfloat16", 2};
    case ulyssesFloat8e4m3: return {"float8e4m3", 1};
    case ulyssesFloat8e5m2: return {"float8e5m2", 1};
    default: return {"unknown", 0};
  }
}

constexpr size_t elementBytes(int dtype) { return dataTypeFacts(dtype).bytes; }

}  // namespace ulysses
