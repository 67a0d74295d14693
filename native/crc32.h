// The CRC-32 of zlib.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpupipe {

uint32_t compute_crc32(const uint8_t* data, size_t size);

}  // namespace gpupipe
